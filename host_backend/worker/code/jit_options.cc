// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/code/jit_options.h"

#include <algorithm>
#include <array>

#include "ivshmem_ring/protocol/known_values.h"

namespace causeway::host {
namespace {

// Fills log buffers, so that it shows how far the driver wrote; no text ends in it.
constexpr char kUntouched = '\xa5';

enum class Kind {
  kNumber,  // 32 bits, of which a later one takes the place of an earlier one, as in the driver
  kEnum,    // likewise, one that cuda.h names
  kResult,  // a number that the driver writes as well, to each place where it stands
  kLog,
  kLogSize,
  kList,
  kListCount,
};

// False: an enum's value that cuda.h does not name.
template <class E>
bool IsValue(uint64_t value) {
  E known;
  return TakeKnown(static_cast<uint32_t>(value), &known) == CUDA_SUCCESS;
}

Kind KindOf(CUjit_option option) {
  switch (option) {
    case CU_JIT_INFO_LOG_BUFFER:
    case CU_JIT_ERROR_LOG_BUFFER:
      return Kind::kLog;
    case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
    case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
      return Kind::kLogSize;
    case CU_JIT_GLOBAL_SYMBOL_NAMES:
    case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
    case CU_JIT_REFERENCED_KERNEL_NAMES:
    case CU_JIT_REFERENCED_VARIABLE_NAMES:
      return Kind::kList;
    case CU_JIT_GLOBAL_SYMBOL_COUNT:
    case CU_JIT_REFERENCED_KERNEL_COUNT:
    case CU_JIT_REFERENCED_VARIABLE_COUNT:
      return Kind::kListCount;
    case CU_JIT_THREADS_PER_BLOCK:
    case CU_JIT_WALL_TIME:
      return Kind::kResult;
    case CU_JIT_TARGET:
    case CU_JIT_FALLBACK_STRATEGY:
    case CU_JIT_CACHE_MODE:
      return Kind::kEnum;
    default:
      return Kind::kNumber;
  }
}

bool IsKnownEnum(CUjit_option option, uint64_t value) {
  if (option == CU_JIT_TARGET) return IsValue<CUjit_target>(value);
  return option == CU_JIT_CACHE_MODE ? IsValue<CUjit_cacheMode>(value) : IsValue<CUjit_fallback>(value);
}

// Those that the driver writes results to.
bool IsResult(CUjit_option option) {
  const Kind kind = KindOf(option);
  return kind == Kind::kResult || kind == Kind::kLogSize;
}

void* AsValue(uint64_t number) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(static_cast<uint32_t>(number)));
}

size_t Written(const std::vector<char>& text) {
  size_t bytes = text.size();
  while (bytes > 0 && text[bytes - 1] == kUntouched) --bytes;
  return bytes;
}

template <class T>
void AppendBytes(std::vector<std::byte>* to, const T& value) {
  const auto* from = reinterpret_cast<const std::byte*>(&value);
  to->insert(to->end(), from, from + sizeof value);
}

}  // namespace

CUresult JitOptions::TakeList(Reader& in, CUjit_option option, uint64_t entries) {
  if (entries > kMaxJitListEntries) return CUDA_ERROR_INVALID_VALUE;
  auto list = std::make_unique<List>();
  list->option = option;
  for (uint64_t i = 0; i < entries && in.ok(); ++i) {
    if (option == CU_JIT_GLOBAL_SYMBOL_ADDRESSES) {
      list->addresses.push_back(reinterpret_cast<void*>(in.Get<uint64_t>()));
      continue;
    }
    const auto bytes = in.Get<uint32_t>();
    const auto* text = reinterpret_cast<const char*>(in.Take(bytes));
    if (text != nullptr) list->names.emplace_back(text, bytes);
  }
  for (const std::string& name : list->names) list->pointers.push_back(name.c_str());
  lists_.push_back(std::move(list));
  return in.error();
}

CUresult JitOptions::TakeOption(Reader& in, uint32_t index, Given* all) {
  const auto wire = in.Get<JitOption>();
  if (!in.ok()) return in.error();
  CUjit_option option;
  // Later options may point somewhere: only those that are known travel.
  if (const CUresult result = TakeKnown(wire.option, &option)) return result;
  const Kind kind = KindOf(option);
  Given& given = all[option];
  if (kind == Kind::kResult) {
    Append(option, AsValue(wire.value), index);
    return CUDA_SUCCESS;
  }
  // Of two logs or lists it is not known which one the driver would use, nor with which of two sizes.
  if (given.is_given && kind != Kind::kNumber && kind != Kind::kEnum) return CUDA_ERROR_INVALID_VALUE;
  if (kind == Kind::kEnum && !IsKnownEnum(option, wire.value)) return CUDA_ERROR_INVALID_VALUE;
  given = {true, index, kind == Kind::kLog || kind == Kind::kList ? wire.value : uint32_t(wire.value)};
  return kind == Kind::kList ? TakeList(in, option, wire.value) : CUDA_SUCCESS;
}

void JitOptions::Append(CUjit_option option, void* value, uint32_t index) {
  options_.push_back(option);
  values_.push_back(value);
  indices_.push_back(index);
}

// Room and size from one number. The driver writes a zero even into a log of size 0.
CUresult JitOptions::MakeLog(CUjit_option buffer, CUjit_option size, const Given* all) {
  if (!all[buffer].is_given && !all[size].is_given) return CUDA_SUCCESS;
  const bool wanted = all[buffer].is_given && all[buffer].value != 0;
  if (wanted && !all[size].is_given) return CUDA_ERROR_INVALID_VALUE;  // as the driver says
  const uint64_t room = all[size].is_given ? std::min<uint64_t>(all[size].value, kMaxLogBytes) : 0;
  void* text = nullptr;
  if (wanted) {
    logs_.push_back(std::make_unique<Log>(Log{buffer, std::vector<char>(room + 1, kUntouched), {}}));
    text = logs_.back()->text.data();
  }
  if (all[buffer].is_given) Append(buffer, text, all[buffer].index);
  if (all[size].is_given) Append(size, AsValue(room), all[size].index);
  return CUDA_SUCCESS;
}

// Lists are as long as their count says, or the call is refused.
CUresult JitOptions::MakeLists(CUjit_option count, std::initializer_list<CUjit_option> lists,
                               const Given* all) {
  const uint64_t entries = all[count].is_given ? all[count].value : 0;
  bool any = all[count].is_given;
  for (const CUjit_option option : lists) {
    const auto found = std::find_if(lists_.begin(), lists_.end(),
                                    [option](const auto& list) { return list->option == option; });
    const uint64_t held =
        found == lists_.end() ? 0 : std::max((*found)->pointers.size(), (*found)->addresses.size());
    if (entries > held) return CUDA_ERROR_INVALID_VALUE;
    if (found == lists_.end()) continue;
    any = true;
    (*found)->pointers.push_back(nullptr);  // never an empty array
    (*found)->addresses.push_back(nullptr);
    const bool of_addresses = option == CU_JIT_GLOBAL_SYMBOL_ADDRESSES;
    Append(option,
           of_addresses ? static_cast<void*>((*found)->addresses.data())
                        : static_cast<void*>((*found)->pointers.data()),
           all[option].index);
  }
  if (any) Append(count, AsValue(entries), all[count].is_given ? all[count].index : kNoIndex);
  return CUDA_SUCCESS;
}

CUresult JitOptions::Take(Reader& in, uint32_t count) {
  if (count > kMaxJitOptions) return CUDA_ERROR_INVALID_VALUE;
  std::array<Given, CU_JIT_NUM_OPTIONS> all{};
  CUresult result = CUDA_SUCCESS;
  for (uint32_t i = 0; i < count && result == CUDA_SUCCESS; ++i) result = TakeOption(in, i, all.data());
  if (result != CUDA_SUCCESS) return result;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto option = static_cast<CUjit_option>(i);
    const Kind kind = KindOf(option);
    if (!all[i].is_given || (kind != Kind::kNumber && kind != Kind::kEnum)) continue;
    Append(option, AsValue(all[i].value), all[i].index);
  }
  result = MakeLog(CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, all.data());
  if (result == CUDA_SUCCESS)
    result = MakeLog(CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, all.data());
  if (result == CUDA_SUCCESS) {
    result = MakeLists(CU_JIT_GLOBAL_SYMBOL_COUNT,
                       {CU_JIT_GLOBAL_SYMBOL_NAMES, CU_JIT_GLOBAL_SYMBOL_ADDRESSES}, all.data());
  }
  if (result == CUDA_SUCCESS)
    result = MakeLists(CU_JIT_REFERENCED_KERNEL_COUNT, {CU_JIT_REFERENCED_KERNEL_NAMES}, all.data());
  if (result == CUDA_SUCCESS)
    result = MakeLists(CU_JIT_REFERENCED_VARIABLE_COUNT, {CU_JIT_REFERENCED_VARIABLE_NAMES}, all.data());
  return result;
}

void JitOptions::Mark() {
  before_ = values_;
  for (const auto& log : logs_) log->before = log->text;
}

void JitOptions::AppendOutputs(std::vector<std::byte>* to) const {
  // What the driver may write elsewhere would be none of the guest's business.
  const auto is_output = [this](size_t i) {
    return values_[i] != before_[i] && IsResult(options_[i]) && indices_[i] != kNoIndex;
  };
  JitOutputs head{};
  for (size_t i = 0; i < values_.size(); ++i) head.value_count += is_output(i);
  for (const auto& log : logs_) head.log_count += log->text != log->before;
  if (head.value_count == 0 && head.log_count == 0) return;
  AppendBytes(to, head);
  for (size_t i = 0; i < values_.size(); ++i) {
    if (is_output(i))
      AppendBytes(to, JitChange{indices_[i], 0, uint32_t(reinterpret_cast<uintptr_t>(values_[i]))});
  }
  for (const auto& log : logs_) {
    if (log->text == log->before) continue;
    const size_t bytes = std::min(Written(log->text), log->text.size() - 1);
    AppendBytes(to, static_cast<uint32_t>(log->option));
    AppendBytes(to, static_cast<uint32_t>(bytes));
    const auto* from = reinterpret_cast<const std::byte*>(log->text.data());
    to->insert(to->end(), from, from + bytes);
  }
}

}  // namespace causeway::host
