// SPDX-License-Identifier: Apache-2.0
// Census category memset.
#include <cstring>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class MemsetTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuMemAlloc(&device_, kBytes));
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  }
  template <class T>
  std::vector<T> Read(size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoH(values.data(), device_, count * sizeof(T)), CUDA_SUCCESS);
    return values;
  }
  static constexpr size_t kBytes = 1 << 16;
  CUdeviceptr device_ = 0;
  CUstream stream_ = nullptr;
};

TEST_F(MemsetTest, Lines) {
  OK(cuMemsetD8(device_, 0x11, kBytes));
  EXPECT_EQ(Read<uint8_t>(kBytes), std::vector<uint8_t>(kBytes, 0x11));
  OK(cuMemsetD16(device_, 0x1234, kBytes / 2));
  EXPECT_EQ(Read<uint16_t>(kBytes / 2), std::vector<uint16_t>(kBytes / 2, 0x1234));
  OK(cuMemsetD32(device_, 0x12345678, kBytes / 4));
  EXPECT_EQ(Read<uint32_t>(kBytes / 4), std::vector<uint32_t>(kBytes / 4, 0x12345678));
  OK(cuMemsetD8Async(device_, 1, 100, stream_));
  OK(cuMemsetD16Async(device_ + 100, 2, 100, stream_));
  OK(cuMemsetD32Async(device_ + 300, 3, 100, stream_));
  const std::vector<uint8_t> bytes = Read<uint8_t>(kBytes);
  EXPECT_EQ(bytes[99], 1);
  EXPECT_EQ(bytes[100], 2);
  EXPECT_EQ(bytes[300], 3);
  EXPECT_EQ(bytes[700], 0x78);
}

TEST_F(MemsetTest, Rows) {
  OK(cuMemsetD8(device_, 0, kBytes));
  OK(cuCtxSynchronize());
  OK(cuMemsetD2D8(device_, 1000, 5, 10, 3));
  OK(cuMemsetD2D16(device_ + 100, 1000, 6, 10, 3));
  OK(cuMemsetD2D32(device_ + 200, 1000, 7, 10, 3));
  OK(cuMemsetD2D8Async(device_ + 10000, 1000, 5, 10, 3, stream_));
  OK(cuMemsetD2D16Async(device_ + 10100, 1000, 6, 10, 3, stream_));
  OK(cuMemsetD2D32Async(device_ + 10200, 1000, 7, 10, 3, stream_));
  const std::vector<uint8_t> bytes = Read<uint8_t>(kBytes);
  for (const size_t base : {size_t{0}, size_t{10000}}) {
    for (size_t row = 0; row < 3; ++row) {
      const uint8_t* at = bytes.data() + base + row * 1000;
      EXPECT_EQ(at[9], 5);
      EXPECT_EQ(at[10], 0);
      EXPECT_EQ(at[118], 6);
      EXPECT_EQ(at[120], 0);
      EXPECT_EQ(at[236], 7);
      EXPECT_EQ(at[240], 0);
    }
    EXPECT_EQ(bytes[base + 3000], 0);
  }
}

TEST_F(MemsetTest, PerThreadForms) {
  auto* d8 = SymbolAs<CUresult(CUdeviceptr, unsigned char, size_t)>("cuMemsetD8_v2_ptds");
  auto* d16 = SymbolAs<CUresult(CUdeviceptr, unsigned short, size_t)>("cuMemsetD16_v2_ptds");
  auto* d32 = SymbolAs<CUresult(CUdeviceptr, unsigned, size_t)>("cuMemsetD32_v2_ptds");
  auto* r32 = SymbolAs<CUresult(CUdeviceptr, size_t, unsigned, size_t, size_t)>("cuMemsetD2D32_v2_ptds");
  auto* a32 = SymbolAs<CUresult(CUdeviceptr, unsigned, size_t, CUstream)>("cuMemsetD32Async_ptsz");
  if (d8 == nullptr || a32 == nullptr) GTEST_SKIP() << "no per-thread forms";
  OK(d8(device_, 1, 4));
  OK(d16(device_ + 4, 2, 2));
  OK(d32(device_ + 8, 3, 1));
  OK(a32(device_ + 12, 4, 1, nullptr));
  OK(r32(device_ + 16, 8, 5, 1, 2));
  const std::vector<uint32_t> words = Read<uint32_t>(7);
  EXPECT_EQ(words[0], 0x01010101u);
  EXPECT_EQ(words[1], 0x00020002u);
  EXPECT_EQ(words[2], 3u);
  EXPECT_EQ(words[3], 4u);
  EXPECT_EQ(words[4], 5u);
  EXPECT_EQ(words[6], 5u);
}

TEST_F(MemsetTest, Errors) {
  EXPECT_EQ(cuMemsetD8(0, 1, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8(device_, 1, kBytes + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD32Async(device_ + kBytes - 4, 1, 2, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD16(device_ + 1, 1, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD32(device_ + 2, 1, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD2D8(device_, 5, 1, 10, 3), CUDA_ERROR_INVALID_VALUE);
  char host[8];
  EXPECT_EQ(cuMemsetD8(reinterpret_cast<CUdeviceptr>(host), 1, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8(device_, 1, 0), CUDA_SUCCESS);
  CUdeviceptr freed = 0;
  OK(cuMemAlloc(&freed, 64 << 20));
  OK(cuMemFree(freed));
  EXPECT_EQ(cuMemsetD8Async(freed, 1, 8, stream_), CUDA_ERROR_INVALID_VALUE);
  OK(cuCtxSynchronize());
}

TEST_F(MemsetTest, PinnedMemoryIsFilledAtOnce) {
  void* pinned = nullptr;
  OK(cuMemHostAlloc(&pinned, 4096, 0));
  OK(cuMemsetD8(reinterpret_cast<CUdeviceptr>(pinned), 9, 4096));
  EXPECT_EQ(static_cast<char*>(pinned)[4095], 9);
}

}  // namespace
}  // namespace causeway::driver_test
