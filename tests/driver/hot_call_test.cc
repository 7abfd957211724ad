// SPDX-License-Identifier: Apache-2.0
// The calls that real programs make most often, by traces of PyTorch, Triton, JAX and CuPy: none of them
// waits for an answer of the host's, except those that the last test names. (On any other library nothing is
// counted, and this is a list of calls that succeed.)
#include <cstring>
#include <functional>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class HotCallTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&data_, 4096));
    OK(cuMemHostAlloc(&pinned_, 4096, 0));
    add_ = Kernel("add");
  }
  // Once ahead: first uses may ask.
  void Waits(uint64_t replies, const char* what, const std::function<CUresult()>& call) {
    ASSERT_EQ(call(), CUDA_SUCCESS) << what;
    const uint64_t before = RepliesAwaited();
    for (int i = 0; i < 3; ++i) ASSERT_EQ(call(), CUDA_SUCCESS) << what;
    const uint64_t awaited = RepliesAwaited() - before;
    if (counts_) {
      EXPECT_EQ(awaited, 3 * replies) << what;
    }
  }
  void DoesNotWait(const char* what, const std::function<CUresult()>& call) { Waits(0, what, call); }

  // Whether most rounds ask nobody, or, in the way that always asks, every one does. Where other threads want
  // the processors a wait soon asks, since the answer wakes its thread: so rounds go on until enough of them
  // asked nobody, and a way in which none ever does ends by the bound.
  void AsksNobody(const char* what, const std::function<CUresult()>& round) {
    const char* wanted = std::getenv("CAUSEWAY_COMPLETION");
    const bool words = (wanted == nullptr || std::strcmp(wanted, "call") != 0) && SharesMemory();
    constexpr uint32_t kRounds = 50, kMostRounds = 20'000, kEnough = 10;
    uint32_t unasked = 0;
    const auto ends = [&](uint32_t done) {
      return words && counts_ ? unasked == kEnough || done == kMostRounds : done == kRounds;
    };
    for (uint32_t done = 0; !ends(done); ++done) {
      const uint64_t before = RepliesAwaited();
      ASSERT_EQ(round(), CUDA_SUCCESS) << what;
      unasked += RepliesAwaited() == before ? 1 : 0;
    }
    if (counts_) {
      EXPECT_EQ(unasked, words ? kEnough : 0) << what;
    }
  }

  const bool counts_ = RepliesAreCounted();
  static bool RepliesAreCounted() {
    const CUuuid figures{{'C', 'a', 'u', 's', 'e', 'w', 'a', 'y', ' ', 'f', 'i', 'g', 'u', 'r', 'e', 's'}};
    const void* table = nullptr;
    return cuGetExportTable(&table, &figures) == CUDA_SUCCESS;
  }
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  CUdeviceptr data_ = 0;
  void* pinned_ = nullptr;
  CUfunction add_ = nullptr;
};

// With completion words the host is not even asked whether it is done, as long as that does not take long.
TEST_F(HotCallTest, CompletionWords) {
  uint32_t n = 1, one = 1;
  void* parameters[] = {&data_, &n, &one};
  AsksNobody("cuStreamSynchronize", [&] {
    const CUresult result = cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr);
    return result != CUDA_SUCCESS ? result : cuStreamSynchronize(stream_);
  });
}

// Nor where a blocking event is waited for: one sleeps until it is expected.
TEST_F(HotCallTest, BlockingEvents) {
  uint32_t n = 1, one = 1;
  void* parameters[] = {&data_, &n, &one};
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
  AsksNobody("cuEventSynchronize", [&] {
    CUresult result = cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr);
    if (result == CUDA_SUCCESS) result = cuEventRecord(event, stream_);
    return result != CUDA_SUCCESS ? result : cuEventSynchronize(event);
  });
  OK(cuEventDestroy(event));
}

// Synchronising gives back what was freed to a pool: the host is asked once after a free, and then no more.
TEST_F(HotCallTest, CompletionWordsAndPools) {
  uint32_t n = 1, one = 1;
  void* parameters[] = {&data_, &n, &one};
  for (uint32_t round = 1; round <= 100; ++round) {
    CUdeviceptr address = 0;
    OK(cuMemAllocAsync(&address, 4096, stream_));
    OK(cuMemsetD32Async(address, 7, 1024, stream_));
    OK(cuMemFreeAsync(address, stream_));
    const uint64_t before = RepliesAwaited();
    OK(cuStreamSynchronize(stream_));
    if (counts_) {
      EXPECT_NE(RepliesAwaited(), before);
    }
  }
  AsksNobody("cuStreamSynchronize after the first", [&] {
    const CUresult result = cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr);
    return result != CUDA_SUCCESS ? result : cuStreamSynchronize(stream_);
  });
}

TEST_F(HotCallTest, Contexts) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  unsigned flags = 0;
  int active = 0, value = 0;
  DoesNotWait("cuCtxGetDevice", [&] { return cuCtxGetDevice(&device); });
  DoesNotWait("cuCtxGetCurrent", [&] { return cuCtxGetCurrent(&context); });
  DoesNotWait("cuCtxSetCurrent", [&] { return cuCtxSetCurrent(context); });
  DoesNotWait("cuDevicePrimaryCtxGetState", [&] { return cuDevicePrimaryCtxGetState(0, &flags, &active); });
  DoesNotWait("cuDeviceGetAttribute",
              [&] { return cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0); });
  const char* text = nullptr;
  DoesNotWait("cuGetErrorString", [&] { return cuGetErrorString(CUDA_ERROR_INVALID_VALUE, &text); });
  DoesNotWait("cuGetErrorName", [&] { return cuGetErrorName(CUDA_ERROR_INVALID_VALUE, &text); });
  void* entry = nullptr;
  CUdriverProcAddressQueryResult found{};
  DoesNotWait("cuGetProcAddress", [&] { return cuGetProcAddress("cuMemAlloc", &entry, 12000, 0, &found); });
}

TEST_F(HotCallTest, Kernels) {
  int value = 0;
  uint32_t n = 1, one = 1;
  void* parameters[] = {&data_, &n, &one};
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream_;
  DoesNotWait("cuFuncGetAttribute",
              [&] { return cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, add_); });
  DoesNotWait("cuOccupancyMaxActiveBlocksPerMultiprocessor",
              [&] { return cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, add_, 128, 0); });
  DoesNotWait("cuLaunchKernel",
              [&] { return cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr); });
  DoesNotWait("cuLaunchKernelEx", [&] { return cuLaunchKernelEx(&config, add_, parameters, nullptr); });
  DoesNotWait("cuLaunchHostFunc", [&] {
    return cuLaunchHostFunc(
        stream_, [](void*) {}, nullptr);
  });
  OK(cuStreamSynchronize(stream_));
}

TEST_F(HotCallTest, StreamsAndEvents) {
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUstreamCaptureStatus status{};
  unsigned flags = 0;
  DoesNotWait("cuStreamCreate, cuStreamDestroy", [&] {
    const CUresult result = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    return result != CUDA_SUCCESS ? result : cuStreamDestroy(stream);
  });
  DoesNotWait("cuStreamCreateWithPriority", [&] {
    const CUresult result = cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -1);
    return result != CUDA_SUCCESS ? result : cuStreamDestroy(stream);
  });
  DoesNotWait("cuEventCreate, cuEventDestroy", [&] {
    const CUresult result = cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    return result != CUDA_SUCCESS ? result : cuEventDestroy(event);
  });
  DoesNotWait("cuStreamIsCapturing", [&] { return cuStreamIsCapturing(stream_, &status); });
  DoesNotWait("cuStreamGetFlags", [&] { return cuStreamGetFlags(stream_, &flags); });
  DoesNotWait("cuEventRecord", [&] { return cuEventRecord(event_, stream_); });
  DoesNotWait("cuStreamWaitEvent", [&] { return cuStreamWaitEvent(stream_, event_, 0); });
}

TEST_F(HotCallTest, Memory) {
  CUdeviceptr address = 0;
  unsigned type = 0;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  void* values[] = {&type};
  DoesNotWait("cuPointerGetAttribute",
              [&] { return cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, data_); });
  DoesNotWait("cuPointerGetAttributes", [&] { return cuPointerGetAttributes(1, attributes, values, data_); });
  DoesNotWait("cuMemAllocAsync, cuMemFreeAsync", [&] {
    const CUresult result = cuMemAllocAsync(&address, 4096, stream_);
    return result != CUDA_SUCCESS ? result : cuMemFreeAsync(address, stream_);
  });
  DoesNotWait("cuMemsetD8Async", [&] { return cuMemsetD8Async(data_, 0, 64, stream_); });
  DoesNotWait("cuMemsetD32Async", [&] { return cuMemsetD32Async(data_, 0, 64, stream_); });
  DoesNotWait("cuMemcpyDtoDAsync", [&] { return cuMemcpyDtoDAsync(data_ + 64, data_, 64, stream_); });
  DoesNotWait("cuMemcpyHtoDAsync of ordinary memory",
              [&] { return cuMemcpyHtoDAsync(data_, &address, sizeof address, stream_); });
  if (SharesMemory()) {
    DoesNotWait("cuMemcpyHtoDAsync of pinned memory",
                [&] { return cuMemcpyHtoDAsync(data_, pinned_, 64, stream_); });
    DoesNotWait("cuMemcpyDtoHAsync to pinned memory",
                [&] { return cuMemcpyDtoHAsync(pinned_, data_, 64, stream_); });
  }
  OK(cuStreamSynchronize(stream_));
}

// Copies that are waited for wait for the GPU's word, not for a reply, unless that takes long; and the
// context is known to be idle behind them.
TEST_F(HotCallTest, CopiesThatWait) {
  uint32_t n = 1, one = 1;
  void* parameters[] = {&data_, &n, &one};
  std::vector<unsigned char> host(100'000);
  CUdeviceptr large = 0;
  OK(cuMemAlloc(&large, host.size()));
  const auto launch = [&] { return cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr); };
  const auto synchronised = [&](CUresult result) {
    return result != CUDA_SUCCESS ? result : cuCtxSynchronize();
  };
  const std::pair<const char*, std::function<CUresult()>> copies[] = {
      {"to pinned memory", [&] { return synchronised(cuMemcpyDtoH(pinned_, data_, 4096)); }},
      {"from pinned memory", [&] { return synchronised(cuMemcpyHtoD(data_, pinned_, 4096)); }},
      {"4 bytes to ordinary memory", [&] { return synchronised(cuMemcpyDtoH(&one, data_, 4)); }},
      {"more to ordinary memory",
       [&] { return synchronised(cuMemcpyDtoH(host.data(), large, host.size())); }},
      {"asynchronous to ordinary memory", [&] { return cuMemcpyDtoHAsync(&one, data_, 4, stream_); }},
      {"4 bytes behind a kernel",
       [&] {
         const CUresult result = launch();
         return result != CUDA_SUCCESS ? result : cuMemcpyHtoD(data_, &one, 4);
       }},
      {"more behind a kernel",
       [&] {
         const CUresult result = launch();
         return result != CUDA_SUCCESS ? result : cuMemcpyHtoD(large, host.data(), host.size());
       }},
  };
  for (const auto& [what, copy] : copies) {
    OK(cuCtxSynchronize());
    AsksNobody(what, copy);
  }
}

// What the host must say: each asks once.
TEST_F(HotCallTest, WhatWaits) {
  uint32_t n = 1, one = 1;
  void* parameters[] = {&data_, &n, &one};
  const auto launch = [&] { return cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr); };
  std::vector<CUdeviceptr> kept;
  Waits(1, "cuMemAlloc", [&] { return cuMemAlloc(&kept.emplace_back(), 4096); });
  for (const CUdeviceptr address : kept) OK(cuMemFree(address));
  size_t free = 0, total = 0;
  Waits(1, "cuMemGetInfo", [&] { return cuMemGetInfo(&free, &total); });
  OK(launch());
  OK(cuStreamSynchronize(stream_));
}

}  // namespace
}  // namespace causeway::driver_test
