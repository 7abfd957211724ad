// SPDX-License-Identifier: Apache-2.0
// What every file of the software GPU's driver shares: cuda.h with all exported names, and the gate through
// which every exported function passes.
//
// Lock order: Context::order_mutex -> Stream's queue mutex -> memory map -> handle registries. No lock is
// held while a kernel, a copy or a host function runs.
#pragma once

// All exported names (suffixes included) instead of the macros that rename them, with default visibility.
#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>
#include <cudaProfiler.h>
#pragma GCC visibility pop

#include <memory>
#include <new>
#include <string_view>

#include "tests/software_gpu/strict_handles.h"

namespace causeway::software_gpu {

struct Context;
using ContextRef = std::shared_ptr<Context>;

inline constexpr int kDriverVersion = 13000;

// What must hold before a call's body runs.
enum class Needs {
  kNothing,  // works before cuInit
  kInit,     // works without a context and after a device fault
  kDevice,   // no current context, but refused after a device fault
  kContext,  // a live current context and no device fault
};

// The gate: forked child and missing cuInit -> 3, injected failures, device faults, missing context -> 201,
// dead context -> 709. With kContext and success, *context is the caller's current context.
CUresult EnterCall(const char* function, Needs needs, ContextRef* context);

// Puts an error into the driver's log and returns it (logs.cc).
CUresult Logged(const char* function, CUresult result);

template <typename Body>
CUresult Guarded(const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

// The exported functions' bodies, by what they need. `function` is the exported name (__func__).
template <typename Body>
CUresult Always(const char* function, const Body& body) {
  const CallScope scope(function);
  CUresult result = EnterCall(function, Needs::kNothing, nullptr);
  return Logged(function, result != CUDA_SUCCESS ? result : Guarded(body));
}

template <typename Body>
CUresult Initialised(const char* function, const Body& body) {
  const CallScope scope(function);
  CUresult result = EnterCall(function, Needs::kInit, nullptr);
  return Logged(function, result != CUDA_SUCCESS ? result : Guarded(body));
}

template <typename Body>
CUresult OnDevice(const char* function, const Body& body) {
  const CallScope scope(function);
  CUresult result = EnterCall(function, Needs::kDevice, nullptr);
  return Logged(function, result != CUDA_SUCCESS ? result : Guarded(body));
}

template <typename Body>
CUresult InContext(const char* function, const Body& body) {
  const CallScope scope(function);
  ContextRef context;
  CUresult result = EnterCall(function, Needs::kContext, &context);
  return Logged(function, result != CUDA_SUCCESS ? result : Guarded([&] { return body(context); }));
}

}  // namespace causeway::software_gpu
