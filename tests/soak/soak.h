// SPDX-License-Identifier: Apache-2.0
// The soak program: threads that mix every group of the driver API, verify what they compute and give back
// all they took. Each group below is one short life: create, use, check, destroy.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/driver/kernels.h"

namespace causeway::soak {

using driver_test::kKernels;

// Thrown by a group; `unsupported` means the library or the GPU says it has no such thing.
struct Failure : std::runtime_error {
  Failure(const std::string& what, CUresult result)
      : std::runtime_error(what), unsupported(result == CUDA_ERROR_NOT_SUPPORTED) {}
  bool unsupported;
};

inline void Check(CUresult result, const char* call, int line) {
  if (result == CUDA_SUCCESS) return;
  const char* name = "?";
  cuGetErrorName(result, &name);
  throw Failure(std::string(call) + " at line " + std::to_string(line) + ": " + name, result);
}
#define SOAK(call) ::causeway::soak::Check(call, #call, __LINE__)

inline void Expect(bool holds, const char* what, int line) {
  if (!holds) throw Failure(std::string("wrong: ") + what + " at line " + std::to_string(line), CUDA_SUCCESS);
}
#define SOAK_EXPECT(condition) ::causeway::soak::Expect(condition, #condition, __LINE__)

// What a thread brings to a group.
struct Thread {
  std::mt19937_64 random;
  CUfunction add = nullptr;  // add(data, n, value): data[i] += value

  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random() % bound); }
  std::vector<uint32_t> Numbers(size_t count) {
    std::vector<uint32_t> numbers(count);
    for (auto& number : numbers) number = static_cast<uint32_t>(random());
    return numbers;
  }
  void LaunchAdd(CUdeviceptr data, uint32_t count, uint32_t value, CUstream stream) {
    void* parameters[] = {&data, &count, &value};
    SOAK(cuLaunchKernel(add, (count + 127) / 128, 1, 1, 128, 1, 1, 0, stream, parameters, nullptr));
  }
};

// Owners, so that a group that fails half-way leaves nothing behind.
template <class T, CUresult (*End)(T)>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (value_ != T{}) End(value_);
  }
  T* out() { return &value_; }
  T get() const { return value_; }
  operator T() const { return value_; }
  void Done() {
    const T value = value_;
    value_ = T{};
    SOAK(End(value));
  }

 private:
  T value_{};
};
inline CUresult FreeHost(void* memory) {
  return cuMemFreeHost(memory);
}
inline CUresult Unregister(void* memory) {
  return cuMemHostUnregister(memory);
}
using DeviceMemory = Owned<CUdeviceptr, cuMemFree>;
using PinnedMemory = Owned<void*, FreeHost>;
using Registration = Owned<void*, Unregister>;
using Stream = Owned<CUstream, cuStreamDestroy>;
using Event = Owned<CUevent, cuEventDestroy>;
using Module = Owned<CUmodule, cuModuleUnload>;
using Library = Owned<CUlibrary, cuLibraryUnload>;
using Pool = Owned<CUmemoryPool, cuMemPoolDestroy>;
using Graph = Owned<CUgraph, cuGraphDestroy>;
using GraphExec = Owned<CUgraphExec, cuGraphExecDestroy>;
using Array = Owned<CUarray, cuArrayDestroy>;

struct Group {
  const char* name;
  void (*run)(Thread&);
};
std::vector<Group> MemoryGroups();  // soak_memory.cc
std::vector<Group> WorkGroups();    // soak_work.cc: streams, events, callbacks, modules, errors
std::vector<Group> GraphGroups();   // soak_graph.cc

}  // namespace causeway::soak
