// SPDX-License-Identifier: Apache-2.0
// Every exported name of the driver as a row: its parameters as cuda.h declares them, and the way to call it. Made at
// compile time from ivshmem_ring/calls.def and the declarations, so that a new call is generated without being listed.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ivshmem_ring/protocol/driver_api.h"
#include "tests/differential/types.h"

namespace causeway::differential {

inline constexpr size_t kMostParameters = 16;
inline constexpr size_t kSlotBytes = 64;  // room for any parameter's value: a CUipcMemHandle is the largest

// What a row's direction says beyond the type, where the row has directions.
enum class Use : uint8_t { kAny, kEnds, kAttribute };

struct Parameter {
  TypeInfo type;
  Use use = Use::kAny;
  std::string declared;  // "CUdeviceptr dstDevice"
  std::string name;      // "dstDevice"
  bool DeclaredAs(std::string_view type_name) const { return declared.starts_with(type_name); }
};

struct Row {
  const char* name = nullptr;
  uint16_t index = 0;
  bool refused = false;  // Causeway answers CUDA_ERROR_NOT_SUPPORTED
  std::vector<Parameter> parameters;
  CUresult (*invoke)(void* function, std::byte (*slots)[kSlotBytes]) = nullptr;
  void* function = nullptr;  // of the library that is tested; null where it has no such name

  std::string_view text() const { return name; }
  bool Named(std::string_view part) const { return text().find(part) != std::string_view::npos; }
  int Find(std::string_view parameter) const;  // the parameter's number, or -1
};

// All rows, in the order of calls.def. The functions are looked up in `library` (dlopen's result).
std::vector<Row>& AllRows();
void LookUpFunctions(void* library);
Row* FindRow(std::string_view name);

// A function of the tested library by its exported name; ends the process where there is none.
void* FunctionOf(std::string_view name);
// Calls one: DRIVER(cuMemFree_v2)(address).
#define DRIVER(fn) (*reinterpret_cast<decltype(&::fn)>(::causeway::differential::FunctionOf(#fn)))

}  // namespace causeway::differential
