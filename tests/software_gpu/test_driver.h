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

// Kernels that the tests launch:
//   add(data, n, value)    data[i] += value for i < n, one thread for each i
//   spin(flag)             waits until *flag != 0
//   store(address)         *address = 7
//   trap()                 ends with a trap
//   shared(out)            static shared memory, 64 threads per block at most
inline constexpr char kPtx[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .global .align 4 .u32 counter = 5;
.visible .entry add(.param .u64 data, .param .u32 n, .param .u32 value)
{
  .reg .pred %p<2>; .reg .b32 %r<9>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [data];
  ld.param.u32 %r1, [n];
  ld.param.u32 %r2, [value];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.s32 %r6, %r3, %r4, %r5;
  setp.ge.u32 %p1, %r6, %r1;
  @%p1 bra DONE;
  mul.wide.u32 %rd2, %r6, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.u32 %r7, [%rd3];
  add.u32 %r8, %r7, %r2;
  st.global.u32 [%rd3], %r8;
DONE:
  ret;
}
.visible .entry spin(.param .u64 flag)
{
  .reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [flag];
AGAIN:
  ld.volatile.global.u32 %r1, [%rd1];
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra AGAIN;
  ret;
}
.visible .entry store(.param .u64 address)
{
  .reg .b32 %r<2>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [address];
  mov.u32 %r1, 7;
  st.global.u32 [%rd1], %r1;
  ret;
}
.visible .entry crash()
{
  trap;
  ret;
}
.visible .entry shared(.param .u64 out) .maxntid 64, 1, 1
{
  .shared .align 4 .b8 buffer[4096];
  .reg .b32 %r<2>; .reg .b64 %rd<2>;
  mov.u64 %rd1, buffer;
  mov.u32 %r1, 1;
  st.u32 [%rd1], %r1;
  ret;
}
)";

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
    ASSERT_EQ(CU(cuModuleLoadData)(&module_, kPtx), CUDA_SUCCESS);
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
