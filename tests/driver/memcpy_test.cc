// SPDX-License-Identifier: Apache-2.0
// Census category memcpy: linear copies, what they refuse and what they wait for.
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class MemcpyTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuMemAlloc(&device_, kBytes));
    OK(cuMemAlloc(&second_, kBytes));
    OK(cuMemHostAlloc(&pinned_, kBytes, 0));
    OK(cuStreamCreate(&blocking_, CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&apart_, CU_STREAM_NON_BLOCKING));
    pageable_.resize(kBytes);
    std::iota(pageable_.begin(), pageable_.end(), 1);
  }
  static constexpr size_t kBytes = 5 << 20;
  CUdeviceptr device_ = 0, second_ = 0;
  void* pinned_ = nullptr;
  CUstream blocking_ = nullptr, apart_ = nullptr;
  std::vector<unsigned char> pageable_;
};

TEST_F(MemcpyTest, EveryDirectionAndSize) {
  auto* pinned = static_cast<unsigned char*>(pinned_);
  for (const size_t bytes :
       {size_t{1}, size_t{3000}, size_t{3073}, size_t{65536}, size_t{65537}, size_t{1 << 20}, kBytes}) {
    std::vector<unsigned char> back(bytes);
    OK(cuMemcpyHtoD(device_, pageable_.data(), bytes));
    OK(cuMemcpyDtoD(second_, device_, bytes));
    OK(cuMemcpyDtoH(back.data(), second_, bytes));
    ASSERT_EQ(std::memcmp(back.data(), pageable_.data(), bytes), 0) << bytes;
    OK(cuMemcpyDtoH(pinned, device_, bytes));
    ASSERT_EQ(std::memcmp(pinned, pageable_.data(), bytes), 0) << bytes;
    pinned[0] ^= 0xff;
    OK(cuMemcpyHtoD(device_, pinned, bytes));
    OK(cuMemcpyDtoHAsync(back.data(), device_, bytes, apart_));
    ASSERT_EQ(back[0], pinned[0]);
    // By unified addresses.
    OK(cuMemcpy(second_, reinterpret_cast<CUdeviceptr>(pageable_.data()), bytes));
    OK(cuMemcpy(reinterpret_cast<CUdeviceptr>(back.data()), second_, bytes));
    ASSERT_EQ(std::memcmp(back.data(), pageable_.data(), bytes), 0) << bytes;
    OK(cuMemcpyAsync(device_, second_, bytes, apart_));
    OK(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(pinned), device_, bytes, apart_));
    OK(cuStreamSynchronize(apart_));
    ASSERT_EQ(std::memcmp(pinned, pageable_.data(), bytes), 0) << bytes;
    std::memset(back.data(), 0, bytes);
    OK(cuMemcpy(reinterpret_cast<CUdeviceptr>(back.data()), reinterpret_cast<CUdeviceptr>(pinned), bytes));
    ASSERT_EQ(std::memcmp(back.data(), pageable_.data(), bytes), 0) << bytes;
    OK(cuMemcpy(reinterpret_cast<CUdeviceptr>(back.data()), reinterpret_cast<CUdeviceptr>(pageable_.data()),
                bytes));
  }
}

TEST_F(MemcpyTest, AsynchronousSourceIsCaptured) {
  std::vector<uint32_t> source(16384, 5), back(16384);
  OK(cuMemcpyHtoDAsync(device_, source.data(), 65536, apart_));
  std::fill(source.begin(), source.end(), 6);
  OK(cuMemcpyDtoHAsync(back.data(), device_, 65536, apart_));
  EXPECT_EQ(back[16383], 5u);
}

TEST_F(MemcpyTest, PeerAndPerThreadForms) {
  std::vector<unsigned char> back(1000);
  OK(cuMemcpyHtoD(device_, pageable_.data(), 1000));
  OK(cuMemcpyPeer(second_, context_, device_, context_, 1000));
  OK(cuMemcpyPeerAsync(second_ + 1000, context_, second_, context_, 1000, nullptr));
  OK(cuMemcpyDtoH(back.data(), second_ + 1000, 1000));
  EXPECT_EQ(std::memcmp(back.data(), pageable_.data(), 1000), 0);
  auto* to_device = SymbolAs<CUresult(CUdeviceptr, const void*, size_t)>("cuMemcpyHtoD_v2_ptds");
  auto* to_host = SymbolAs<CUresult(void*, CUdeviceptr, size_t)>("cuMemcpyDtoH_v2_ptds");
  auto* on_device = SymbolAs<CUresult(CUdeviceptr, CUdeviceptr, size_t)>("cuMemcpyDtoD_v2_ptds");
  auto* unified = SymbolAs<CUresult(CUdeviceptr, CUdeviceptr, size_t)>("cuMemcpy_ptds");
  auto* unified_async = SymbolAs<CUresult(CUdeviceptr, CUdeviceptr, size_t, CUstream)>("cuMemcpyAsync_ptsz");
  auto* peer =
      SymbolAs<CUresult(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t)>("cuMemcpyPeer_ptds");
  if (to_device == nullptr || peer == nullptr || unified_async == nullptr)
    GTEST_SKIP() << "no per-thread forms";
  OK(to_device(device_, pageable_.data() + 7, 1000));
  OK(on_device(second_, device_, 1000));
  OK(peer(device_ + 1000, context_, second_, context_, 1000));
  OK(unified(second_ + 1000, device_ + 1000, 1000));
  OK(unified_async(second_ + 2000, second_ + 1000, 1000, nullptr));
  OK(to_host(back.data(), second_ + 2000, 1000));
  EXPECT_EQ(std::memcmp(back.data(), pageable_.data() + 7, 1000), 0);
}

TEST_F(MemcpyTest, Errors) {
  char host[16] = "";
  EXPECT_EQ(cuMemcpyHtoD(device_, nullptr, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoH(nullptr, device_, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD(0, host, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoD(device_, 0, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD(device_ + kBytes - 4, host, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoH(host, device_ + kBytes - 4, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoDAsync(device_ + kBytes - 4, host, 8, apart_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoDAsync(device_, second_ + kBytes - 4, 8, apart_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD(device_, host, 0), CUDA_SUCCESS);
  Say("zeroFromNull", cuMemcpyHtoD(device_, nullptr, 0));
  Say("hostAsDevice", cuMemcpyDtoD(device_, reinterpret_cast<CUdeviceptr>(host), 8));
  CUdeviceptr freed = 0;
  OK(cuMemAlloc(&freed, 64 << 20));
  OK(cuMemFree(freed));
  EXPECT_EQ(cuMemcpyHtoD(freed, host, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoDAsync(freed, device_, 8, apart_), CUDA_ERROR_INVALID_VALUE);
  if (SharesMemory()) {
    char* end = static_cast<char*>(pinned_) + kBytes;
    EXPECT_EQ(cuMemcpyDtoHAsync(end - 4, device_, 8, apart_), CUDA_ERROR_INVALID_VALUE);
  }
  OK(cuStreamSynchronize(apart_));
  OK(cuCtxSynchronize());
}

TEST_F(MemcpyTest, WhatSynchronousCopiesWaitFor) {
  char host[4] = "";
  {
    Spinner spinner(Kernel("spin"), blocking_);
    EXPECT_FALSE(Waits(
        spinner,
        [&] {
          EXPECT_EQ(cuMemcpyDtoD(device_, second_, 4096), CUDA_SUCCESS);
          EXPECT_EQ(cuMemsetD8(device_, 1, 100), CUDA_SUCCESS);
        },
        false));
  }
  {
    Spinner spinner(Kernel("spin"), blocking_);
    EXPECT_TRUE(Waits(spinner, [&] { EXPECT_EQ(cuMemcpyHtoD(device_, host, 4), CUDA_SUCCESS); }));
  }
  {
    Spinner spinner(Kernel("spin"), blocking_);
    EXPECT_TRUE(Waits(spinner, [&] { EXPECT_EQ(cuMemcpyDtoH(pinned_, device_, 4), CUDA_SUCCESS); }));
  }
  {
    Spinner spinner(Kernel("spin"), blocking_);
    EXPECT_TRUE(Waits(spinner, [&] { EXPECT_EQ(cuMemcpyHtoD(device_, pinned_, kBytes), CUDA_SUCCESS); }));
  }
  {
    Spinner spinner(Kernel("spin"), nullptr);
    EXPECT_TRUE(Waits(spinner, [&] { EXPECT_EQ(cuMemcpyDtoH(host, device_, 4), CUDA_SUCCESS); }));
  }
  {
    Spinner spinner(Kernel("spin"), nullptr);
    EXPECT_TRUE(
        Waits(spinner, [&] { EXPECT_EQ(cuMemcpyHtoD(device_, pageable_.data(), 100'000), CUDA_SUCCESS); }));
  }
  {
    Spinner spinner(Kernel("spin"), apart_);
    EXPECT_FALSE(Waits(
        spinner,
        [&] {
          EXPECT_EQ(cuMemcpyHtoD(device_, host, 4), CUDA_SUCCESS);
          EXPECT_EQ(cuMemcpyDtoH(pinned_, device_, 4), CUDA_SUCCESS);
          EXPECT_EQ(cuMemcpyHtoD(device_, pinned_, kBytes), CUDA_SUCCESS);
          EXPECT_EQ(cuMemcpy(reinterpret_cast<CUdeviceptr>(host), device_, 4), CUDA_SUCCESS);
        },
        false));
  }
}

TEST_F(MemcpyTest, WhatAsynchronousCopiesWaitFor) {
  std::vector<char> host(1 << 20);
  {
    Spinner spinner(Kernel("spin"), apart_);
    EXPECT_FALSE(Waits(
        spinner,
        [&] {
          EXPECT_EQ(cuMemcpyHtoDAsync(device_, host.data(), 65536, apart_), CUDA_SUCCESS);
          EXPECT_EQ(cuMemcpyDtoDAsync(device_, second_, 65536, apart_), CUDA_SUCCESS);
        },
        false));
  }
  if (SharesMemory()) {
    Spinner spinner(Kernel("spin"), apart_);
    EXPECT_FALSE(Waits(
        spinner,
        [&] {
          EXPECT_EQ(cuMemcpyHtoDAsync(device_, pinned_, kBytes, apart_), CUDA_SUCCESS);
          EXPECT_EQ(cuMemcpyDtoHAsync(pinned_, device_, kBytes, apart_), CUDA_SUCCESS);
        },
        false));
  }
  {
    Spinner spinner(Kernel("spin"), apart_);
    EXPECT_TRUE(
        Waits(spinner, [&] { EXPECT_EQ(cuMemcpyDtoHAsync(host.data(), device_, 4, apart_), CUDA_SUCCESS); }));
  }
}

TEST_F(MemcpyTest, SyncMemops) {
  unsigned on = 1, value = 9;
  OK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device_));
  EXPECT_EQ(value, 0u);
  OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device_));
  EXPECT_EQ(cuPointerSetAttribute(nullptr, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device_),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_CONTEXT, device_), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemcpyDtoD(device_, second_, 100));
  OK(cuMemsetD8(device_, 3, 100));
}

}  // namespace
}  // namespace causeway::driver_test
