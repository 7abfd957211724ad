// SPDX-License-Identifier: Apache-2.0
// What the tests share: the driver's functions, found by name in the library under test, and small helpers.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "tests/driver/kernels.h"

namespace causeway::software_gpu_test {

// The library is opened once, by path. CAUSEWAY_TEST_LIBCUDA names another one, e.g. NVIDIA's.
inline void* Library() {
  static void* const library = [] {
    const char* path = std::getenv("CAUSEWAY_TEST_LIBCUDA");
    void* opened = dlopen(path != nullptr ? path : SOFTWARE_GPU_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::abort();
    }
    return opened;
  }();
  return library;
}

// Some tests look at what only the software GPU does, e.g. recognising stale handles.
inline bool IsOtherLibrary() {
  return std::getenv("CAUSEWAY_TEST_LIBCUDA") != nullptr;
}

template <typename Function>
Function* FindDriverFunction(const char* name) {
  void* found = dlsym(Library(), name);
  if (found == nullptr) {
    std::fprintf(stderr, "the library under test lacks %s\n", name);
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

// Calls a driver function by its exported name: CU(cuMemAlloc_v2)(&pointer, 4096).
#define CU(name) (::causeway::software_gpu_test::FindDriverFunction<decltype(::name)>(#name))

using driver_test::kKernels;

// A current primary context of device 0.
class DriverTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(); }

  // Gives everything back: with the last reference the context ends and frees what the test left.
  void TearDown() override {
    EXPECT_EQ(CU(cuDevicePrimaryCtxRelease_v2)(0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuCtxSetCurrent)(nullptr), CUDA_SUCCESS);
  }

  void Start() {
    ASSERT_EQ(CU(cuInit)(0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSetCurrent)(context_), CUDA_SUCCESS);
  }

  void LoadKernels() {
    ASSERT_EQ(CU(cuModuleLoadData)(&module_, kKernels), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuModuleGetFunction)(&add_, module_, "add"), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuModuleGetFunction)(&spin_, module_, "spin"), CUDA_SUCCESS);
  }

  CUdeviceptr Allocate(size_t bytes) {
    CUdeviceptr pointer = 0;
    EXPECT_EQ(CU(cuMemAlloc_v2)(&pointer, bytes), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemsetD8_v2)(pointer, 0, bytes), CUDA_SUCCESS);
    // It returns before it is done, and streams that do not block would not wait for it.
    EXPECT_EQ(CU(cuStreamSynchronize)(nullptr), CUDA_SUCCESS);
    return pointer;
  }

  // A pinned word that releases `spin`.
  unsigned* AllocateFlag() {
    void* flag = nullptr;
    EXPECT_EQ(CU(cuMemHostAlloc)(&flag, 4096, CU_MEMHOSTALLOC_DEVICEMAP), CUDA_SUCCESS);
    *static_cast<unsigned*>(flag) = 0;
    return static_cast<unsigned*>(flag);
  }

  static void Release(unsigned* flag) { __atomic_store_n(flag, 1u, __ATOMIC_RELEASE); }

  CUresult LaunchAdd(CUdeviceptr data, unsigned count, unsigned value, CUstream stream) {
    void* parameters[] = {&data, &count, &value};
    return CU(cuLaunchKernel)(add_, (count + 63) / 64, 1, 1, 64, 1, 1, 0, stream, parameters, nullptr);
  }

  CUresult LaunchSpin(unsigned* flag, CUstream stream) {
    void* parameters[] = {&flag};
    return CU(cuLaunchKernel)(spin_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
  }

  CUstream MakeStream(unsigned flags) {
    CUstream stream = nullptr;
    EXPECT_EQ(CU(cuStreamCreate)(&stream, flags), CUDA_SUCCESS);
    return stream;
  }

  std::vector<unsigned> Read(CUdeviceptr from, size_t count) {
    std::vector<unsigned> words(count);
    EXPECT_EQ(CU(cuMemcpyDtoH_v2)(words.data(), from, count * 4), CUDA_SUCCESS);
    return words;
  }

  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction add_ = nullptr;
  CUfunction spin_ = nullptr;
};

}  // namespace causeway::software_gpu_test
