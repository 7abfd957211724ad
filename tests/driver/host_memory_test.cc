// SPDX-License-Identifier: Apache-2.0
// Census category host memory: pinned allocations. Registered memory: host_register_test.cc.
#include <cstring>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class HostMemoryTest : public DriverTest {};

TEST_F(HostMemoryTest, AllocationFlagsAndErrors) {
  void* memory = nullptr;
  EXPECT_EQ(cuMemHostAlloc(nullptr, 100, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostAlloc(&memory, 100, 8), CUDA_ERROR_INVALID_VALUE);
  Say("zero", cuMemHostAlloc(&memory, 0, 0));
  for (unsigned flags = 0; flags < 8; ++flags) {
    unsigned got = 0;
    OK(cuMemHostAlloc(&memory, 5000, flags));
    std::memset(memory, 1, 5000);
    OK(cuMemHostGetFlags(&got, memory));
    EXPECT_EQ(got, flags | CU_MEMHOSTALLOC_DEVICEMAP);
    OK(cuMemFreeHost(memory));
  }
  unsigned got = 0;
  EXPECT_EQ(cuMemHostGetFlags(&got, memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeHost(memory), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemAllocHost(&memory, 5000));
  EXPECT_EQ(cuMemFreeHost(static_cast<char*>(memory) + 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostGetFlags(nullptr, memory), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFreeHost(memory));
  EXPECT_EQ(cuMemFreeHost(nullptr), CUDA_SUCCESS);
}

TEST_F(HostMemoryTest, DevicePointer) {
  NEEDS_SHARED_MEMORY();
  void* memory = nullptr;
  CUdeviceptr device = 0;
  OK(cuMemHostAlloc(&memory, 4000, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuMemHostGetDevicePointer(&device, static_cast<char*>(memory) + 16, 0));
  EXPECT_EQ(device, reinterpret_cast<CUdeviceptr>(memory) + 16);
  EXPECT_EQ(cuMemHostGetDevicePointer(&device, memory, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostGetDevicePointer(nullptr, memory, 0), CUDA_ERROR_INVALID_VALUE);
  auto* words = static_cast<uint32_t*>(memory);
  for (uint32_t i = 0; i < 1000; ++i) words[i] = i;
  uint32_t count = 1000, add = 7;
  void* parameters[] = {&memory, &count, &add};
  OK(cuLaunchKernel(Kernel("add"), 4, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
  OK(cuCtxSynchronize());
  EXPECT_EQ(words[999], 1006u);
}

TEST_F(HostMemoryTest, ManySizes) {
  std::vector<std::pair<char*, size_t>> blocks;
  for (size_t i = 0; i < 200; ++i) {
    void* memory = nullptr;
    const size_t bytes = 1 + i * i * 37;
    OK(cuMemHostAlloc(&memory, bytes, 0));
    std::memset(memory, static_cast<int>(i), bytes);
    blocks.emplace_back(static_cast<char*>(memory), bytes);
    if (i % 3 != 2) continue;
    OK(cuMemFreeHost(blocks[i / 3].first));
    blocks.erase(blocks.begin() + static_cast<long>(i / 3));
  }
  for (auto [memory, bytes] : blocks) {
    for (size_t i = 1; i < bytes; i += 97) ASSERT_EQ(memory[i], memory[0]);
  }
}

TEST_F(HostMemoryTest, FreeWaitsForTheWholeDevice) {
  NEEDS_SHARED_MEMORY();
  void* memory = nullptr;
  CUstream stream = nullptr;
  OK(cuMemHostAlloc(&memory, 4000, 0));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  Spinner spinner(Kernel("spin"), stream);
  EXPECT_TRUE(Waits(spinner, [&] { EXPECT_EQ(cuMemFreeHost(memory), CUDA_SUCCESS); }));
}

// After the context that had it registered is gone.
TEST_F(HostMemoryTest, OutlivesAnotherContext) {
  CUcontext other = nullptr;
  void *theirs = nullptr, *ours = nullptr;
  OK(cuCtxCreate(&other, nullptr, 0, 0));
  OK(cuMemHostAlloc(&theirs, 64 << 20, 0));
  OK(cuCtxSetCurrent(context_));
  OK(cuMemHostAlloc(&ours, 4096, 0));
  OK(cuCtxDestroy(other));
  OK(cuCtxSetCurrent(context_));
  CUdeviceptr device = 0;
  OK(cuMemAlloc(&device, 4096));
  OK(cuMemsetD8(device, 4, 4096));
  OK(cuMemcpyDtoHAsync(ours, device, 4096, nullptr));
  OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(static_cast<char*>(ours)[4095], 4);
}

}  // namespace
}  // namespace causeway::driver_test
