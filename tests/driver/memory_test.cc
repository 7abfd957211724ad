// SPDX-License-Identifier: Apache-2.0
// Census category memory: device allocations.
#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class MemoryTest : public DriverTest {};

TEST_F(MemoryTest, AllocationAndErrors) {
  CUdeviceptr memory = 0;
  EXPECT_EQ(cuMemAlloc(nullptr, 100), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc(&memory, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc(&memory, size_t{1} << 50), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuMemAlloc(&memory, 1000));
  EXPECT_EQ(memory % 256, 0u);
  EXPECT_EQ(cuMemFree(memory + 256), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFree(memory));
  EXPECT_EQ(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(0), CUDA_SUCCESS);
  char ours[8];
  EXPECT_EQ(cuMemFree(reinterpret_cast<CUdeviceptr>(ours)), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, Pitch) {
  CUdeviceptr memory = 0;
  size_t pitch = 0;
  OK(cuMemAllocPitch(&memory, &pitch, 1000, 50, 4));
  EXPECT_GE(pitch, 1000u);
  Say("pitch", pitch);
  OK(cuMemsetD8(memory, 1, pitch * 50));
  EXPECT_EQ(cuMemAllocPitch(&memory, &pitch, 0, 50, 4), CUDA_ERROR_INVALID_VALUE);
  Say("element3", cuMemAllocPitch(&memory, &pitch, 100, 50, 3));
}

TEST_F(MemoryTest, Range) {
  CUdeviceptr memory = 0, base = 0;
  size_t bytes = 0;
  OK(cuMemAlloc(&memory, 100000));
  OK(cuMemGetAddressRange(&base, &bytes, memory + 5000));
  EXPECT_EQ(base, memory);
  EXPECT_EQ(bytes, 100000u);
  OK(cuMemGetAddressRange(nullptr, nullptr, memory));
  char ours[8];
  EXPECT_NE(cuMemGetAddressRange(&base, &bytes, reinterpret_cast<CUdeviceptr>(ours)), CUDA_SUCCESS);
  OK(cuMemFree(memory));
}

TEST_F(MemoryTest, Info) {
  size_t free = 0, total = 0;
  OK(cuMemGetInfo(&free, &total));
  EXPECT_LE(free, total);
  EXPECT_GT(free, 0u);
}

TEST_F(MemoryTest, FreeWaitsForTheWholeDevice) {
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  OK(cuMemAlloc(&memory, 100));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  {
    Spinner spinner(Kernel("spin"), stream);
    EXPECT_FALSE(Waits(
        spinner,
        [&] {
          CUdeviceptr other = 0;
          size_t free = 0, total = 0;
          EXPECT_EQ(cuMemAlloc(&other, 4096), CUDA_SUCCESS);
          EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
          EXPECT_EQ(cuMemFree(0), CUDA_SUCCESS);
        },
        false));
  }
  Spinner spinner(Kernel("spin"), stream);
  EXPECT_TRUE(Waits(spinner, [&] { EXPECT_EQ(cuMemFree(memory), CUDA_SUCCESS); }));
}

TEST_F(MemoryTest, Decompression) {
  NEEDS_HARDWARE("decompression");
  size_t index = 0;
  CUmemDecompressParams parameters{};
  EXPECT_NE(cuMemBatchDecompressAsync(nullptr, 1, 0, &index, nullptr), CUDA_SUCCESS);
  EXPECT_NE(cuMemBatchDecompressAsync(&parameters, 1, 0, &index, nullptr), CUDA_SUCCESS);
}

}  // namespace
}  // namespace causeway::driver_test
