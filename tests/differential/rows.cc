// SPDX-License-Identifier: Apache-2.0
#include "tests/differential/rows.h"

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>
#include <utility>

#include "ivshmem_ring/protocol/call.h"

namespace causeway::differential {
namespace {

template <class Function>
struct Signature;
template <class... P>
struct Signature<CUresult (*)(P...)> {
  static constexpr std::array<TypeInfo, sizeof...(P)> kTypes{Describe<P>()...};
  static_assert(sizeof...(P) <= kMostParameters && ((sizeof(P) <= kSlotBytes) && ...));
  static CUresult Invoke(void* function, std::byte (*slots)[kSlotBytes]) {
    return Invoke(function, slots, std::index_sequence_for<P...>{});
  }
  template <size_t... I>
  static CUresult Invoke(void* function, [[maybe_unused]] std::byte (*slots)[kSlotBytes],
                         std::index_sequence<I...>) {
    return reinterpret_cast<CUresult (*)(P...)>(function)(*reinterpret_cast<P*>(slots[I])...);
  }
};

template <class Direction>
struct UseOf {
  static constexpr Use kUse = Ends<Direction> ? Use::kEnds : Use::kAny;
};
template <size_t I>
struct UseOf<OutAttribute<I>> {
  static constexpr Use kUse = Use::kAttribute;
};
template <size_t I>
struct UseOf<InAttribute<I>> {
  static constexpr Use kUse = Use::kAttribute;
};
template <class Shape>
struct UsesOf;
template <class F, class... D>
struct UsesOf<Shape<F, D...>> {
  static constexpr std::array<Use, sizeof...(D)> kUses{UseOf<D>::kUse...};
};

// cuda.h's own words for the parameters (parameter_names.py).
std::string_view DeclaredParameters(std::string_view name) {
  static const std::unordered_map<std::string_view, std::string_view> all = {
#include "tests/differential/parameter_names.inc"
  };
  const auto found = all.find(name);
  return found == all.end() ? std::string_view() : found->second;
}

void Declare(Row& row) {
  std::string_view rest = DeclaredParameters(row.name);
  for (Parameter& parameter : row.parameters) {
    const size_t end = rest.find(';');
    parameter.declared = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    size_t last = parameter.declared.find_last_not_of("[]");
    if (last == std::string::npos) continue;
    const size_t first = parameter.declared.find_last_of(" *", last);
    parameter.name = parameter.declared.substr(first + 1, last - first);
  }
}

Row MakeRow(const char* name, bool refused, std::span<const TypeInfo> types, std::span<const Use> uses,
            CUresult (*invoke)(void*, std::byte (*)[kSlotBytes])) {
  Row row;
  row.name = name;
  row.refused = refused;
  row.invoke = invoke;
  for (size_t i = 0; i < types.size(); ++i) {
    row.parameters.push_back({types[i], uses.empty() ? Use::kAny : uses[i], {}, {}});
  }
  Declare(row);
  return row;
}

std::vector<Row> MakeRows() {
  std::vector<Row> rows;
#define ROW(fn, refused, uses) \
  rows.push_back(              \
      MakeRow(#fn, refused, Signature<decltype(&::fn)>::kTypes, uses, &Signature<decltype(&::fn)>::Invoke));
#define CALL(fn, ...) ROW(fn, false, UsesOf<RowShape<Op::fn>>::kUses)
#define GUEST CALL
#define CUSTOM(fn, ...) ROW(fn, false, std::span<const Use>())
#define LOCAL CUSTOM
#define ALIAS CUSTOM
#define PER_THREAD CUSTOM
#define REFUSE(fn, ...) ROW(fn, true, std::span<const Use>())
#include "ivshmem_ring/calls.def"
#undef ROW
  for (size_t i = 0; i < rows.size(); ++i) rows[i].index = static_cast<uint16_t>(i);
  return rows;
}

}  // namespace

int Row::Find(std::string_view parameter) const {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name == parameter) return static_cast<int>(i);
  }
  return -1;
}

std::vector<Row>& AllRows() {
  static std::vector<Row> rows = MakeRows();
  return rows;
}

void LookUpFunctions(void* library) {
  for (Row& row : AllRows()) row.function = dlsym(library, row.name);
}

Row* FindRow(std::string_view name) {
  static const std::unordered_map<std::string_view, Row*> by_name = [] {
    std::unordered_map<std::string_view, Row*> map;
    for (Row& row : AllRows()) map.emplace(row.name, &row);
    return map;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

void* FunctionOf(std::string_view name) {
  const Row* row = FindRow(name);
  if (row != nullptr && row->function != nullptr) return row->function;
  std::fprintf(stderr, "differential: the library has no %.*s, which this program itself calls\n",
               static_cast<int>(name.size()), name.data());
  std::exit(2);
}

}  // namespace causeway::differential
