// SPDX-License-Identifier: Apache-2.0
// Errors that launches, copies, fills, events, waits and frees return at the call, whatever else they leave
// to the device: each while the stream is busy, so that nothing that comes back later could tell them; and
// after each the next call succeeds, because none of them stays. Expectations are NVIDIA's answers as the
// other tests of this suite and the header have them.
#include <functional>
#include <string>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class ImmediateErrorTest : public DriverTest {
 protected:
  static constexpr size_t kBytes = 1u << 16;
  using Call = std::function<CUresult()>;

  void SetUp() override {
    DriverTest::SetUp();
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&data_, kBytes));
    OK(cuMemAlloc(&second_, kBytes));
    add_ = Kernel("add");
    spin_ = Kernel("spin");
    OK(cuMemsetD8(data_, 0, kBytes));
    OK(cuCtxSynchronize());
  }
  CUresult Launch(unsigned grid, unsigned block, unsigned shared = 0, unsigned grid_y = 1,
                  unsigned block_z = 1) {
    uint32_t n = 1, value = 1;
    void* parameters[] = {&data_, &n, &value};
    return cuLaunchKernel(add_, grid, grid_y, 1, block, 1, block_z, shared, stream_, parameters, nullptr);
  }
  void Expect(CUresult wanted, const char* what, const Call& call) {
    {
      const Spinner busy(spin_, stream_);
      EXPECT_EQ(call(), wanted) << what << ", the stream being busy";
      EXPECT_EQ(Launch(1, 1), CUDA_SUCCESS) << "after " << what;
    }
    ++launches_;
    EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS) << "after " << what;
  }
  void TearDown() override {
    uint32_t sum = 0;
    EXPECT_EQ(cuMemcpyDtoH(&sum, data_, sizeof sum), CUDA_SUCCESS);
    EXPECT_EQ(sum, launches_);  // and nothing of what was refused happened
    DriverTest::TearDown();
  }

  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  CUdeviceptr data_ = 0, second_ = 0;
  CUfunction add_ = nullptr, spin_ = nullptr;
  uint32_t launches_ = 0;
};

TEST_F(ImmediateErrorTest, Launches) {
  Expect(CUDA_ERROR_INVALID_VALUE, "no blocks", [&] { return Launch(0, 1); });
  Expect(CUDA_ERROR_INVALID_VALUE, "no threads", [&] { return Launch(1, 0); });
  Expect(CUDA_ERROR_INVALID_VALUE, "5000 threads", [&] { return Launch(1, 5000); });
  Expect(CUDA_ERROR_INVALID_VALUE, "too many blocks", [&] { return Launch(1u << 31, 1); });
  Expect(CUDA_ERROR_INVALID_VALUE, "too many blocks in y", [&] { return Launch(1, 1, 0, 65536); });
  Expect(CUDA_ERROR_INVALID_VALUE, "a block too deep", [&] { return Launch(1, 1, 0, 1, 65); });
  Expect(CUDA_ERROR_INVALID_VALUE, "a megabyte of shared memory", [&] { return Launch(1, 1, 1 << 20); });
  Expect(CUDA_ERROR_INVALID_HANDLE, "no kernel",
         [&] { return cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, stream_, nullptr, nullptr); });
  Expect(CUDA_ERROR_INVALID_VALUE, "no configuration",
         [&] { return cuLaunchKernelEx(nullptr, add_, nullptr, nullptr); });
  Expect(CUDA_ERROR_INVALID_VALUE, "no host function",
         [&] { return cuLaunchHostFunc(stream_, nullptr, nullptr); });
}

TEST_F(ImmediateErrorTest, Copies) {
  char host[16] = "";
  Expect(CUDA_ERROR_INVALID_VALUE, "from null",
         [&] { return cuMemcpyHtoDAsync(data_, nullptr, 8, stream_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "to null", [&] { return cuMemcpyDtoHAsync(nullptr, data_, 8, stream_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "to device null", [&] { return cuMemcpyHtoDAsync(0, host, 8, stream_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "past the end, to the device",
         [&] { return cuMemcpyHtoDAsync(second_ + kBytes - 4, host, 8, stream_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "past the end, from the device",
         [&] { return cuMemcpyDtoHAsync(host, second_ + kBytes - 4, 8, stream_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "past the end, on the device",
         [&] { return cuMemcpyDtoDAsync(data_ + 64, second_ + kBytes - 4, 8, stream_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "from device null",
         [&] { return cuMemcpyDtoDAsync(data_ + 64, 0, 8, stream_); });
  Expect(CUDA_SUCCESS, "nothing", [&] { return cuMemcpyHtoDAsync(data_, host, 0, stream_); });
}

TEST_F(ImmediateErrorTest, Fills) {
  Expect(CUDA_ERROR_INVALID_VALUE, "null", [&] { return cuMemsetD8Async(0, 1, 8, stream_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "past the end",
         [&] { return cuMemsetD32Async(second_ + kBytes - 4, 1, 2, stream_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "an odd address for halves",
         [&] { return cuMemsetD16Async(second_ + 1, 1, 4, stream_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "half an address for words",
         [&] { return cuMemsetD32Async(second_ + 2, 1, 4, stream_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "a pitch below the width",
         [&] { return cuMemsetD2D8Async(second_, 5, 1, 10, 3, stream_); });
  Expect(CUDA_SUCCESS, "nothing", [&] { return cuMemsetD8Async(second_, 1, 0, stream_); });
}

TEST_F(ImmediateErrorTest, EventsAndWaits) {
  Expect(CUDA_ERROR_INVALID_HANDLE, "recording none", [&] { return cuEventRecord(nullptr, stream_); });
  Expect(CUDA_ERROR_INVALID_HANDLE, "asking none", [&] { return cuEventQuery(nullptr); });
  Expect(CUDA_ERROR_INVALID_HANDLE, "waiting for none", [&] { return cuEventSynchronize(nullptr); });
  Expect(CUDA_ERROR_INVALID_HANDLE, "destroying none", [&] { return cuEventDestroy(nullptr); });
  Expect(CUDA_ERROR_INVALID_HANDLE, "a stream waiting for none",
         [&] { return cuStreamWaitEvent(stream_, nullptr, 0); });
  Expect(CUDA_ERROR_INVALID_VALUE, "flags of a wait", [&] { return cuStreamWaitEvent(stream_, event_, 7); });
  CUevent made = nullptr;
  Expect(CUDA_ERROR_INVALID_VALUE, "flags of an event", [&] { return cuEventCreate(&made, 0x100); });
  Expect(CUDA_ERROR_INVALID_VALUE, "no place for an event", [&] { return cuEventCreate(nullptr, 0); });
  CUstream stream = nullptr;
  Expect(CUDA_ERROR_INVALID_VALUE, "flags of a stream", [&] { return cuStreamCreate(&stream, 2); });
  Expect(CUDA_ERROR_INVALID_HANDLE, "destroying the legacy stream", [&] { return cuStreamDestroy(nullptr); });
}

TEST_F(ImmediateErrorTest, Frees) {
  CUdeviceptr none = 0;
  Expect(CUDA_ERROR_INVALID_VALUE, "the middle of an allocation",
         [&] { return cuMemFreeAsync(second_ + 8, stream_); });
  Expect(CUDA_SUCCESS, "no bytes", [&] { return cuMemAllocAsync(&none, 0, stream_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "no place for an address",
         [&] { return cuMemAllocAsync(nullptr, 64, stream_); });
}

TEST_F(ImmediateErrorTest, WithoutAContext) {
  OK(cuCtxSetCurrent(nullptr));
  char host[16] = "";
  CUevent made = nullptr;
  // The stream tells the context; a default stream does not (LaunchTest.RefusedHandles).
  EXPECT_EQ(Launch(1, 1), CUDA_SUCCESS);
  ++launches_;
  EXPECT_EQ(cuMemcpyHtoD(data_, host, 8), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuMemsetD8(data_, 1, 8), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuEventCreate(&made, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuCtxSetCurrent(context_));
  OK(cuStreamSynchronize(stream_));
}

// Calls that name a stream where no context is current: what each answers.
TEST_F(ImmediateErrorTest, OnlyAStream) {
  CUstreamCaptureStatus capture{};
  CUcontext its = nullptr;
  CUdeviceptr made = 0;
  unsigned flags = 0;
  int priority = 0;
  char host[16] = "";
  const auto nothing = [](void*) {};
  OK(cuCtxSetCurrent(nullptr));
  Say("record", cuEventRecord(event_, stream_));
  Say("wait", cuStreamWaitEvent(stream_, event_, 0));
  Say("query event", cuEventQuery(event_) == CUDA_ERROR_INVALID_CONTEXT);
  Say("synchronize event", cuEventSynchronize(event_));
  Say("fill", cuMemsetD8Async(second_, 1, 8, stream_));
  Say("to the device", cuMemcpyHtoDAsync(second_, host, 8, stream_));
  Say("from the device", cuMemcpyDtoHAsync(host, second_, 8, stream_));
  Say("on the device", cuMemcpyDtoDAsync(second_, data_ + 64, 8, stream_));
  Say("function", cuLaunchHostFunc(stream_, nothing, nullptr));
  Say("allocate", cuMemAllocAsync(&made, 64, stream_));
  Say("query", cuStreamQuery(stream_) == CUDA_ERROR_INVALID_CONTEXT);
  Say("synchronize", cuStreamSynchronize(stream_));
  Say("flags", cuStreamGetFlags(stream_, &flags));
  Say("priority", cuStreamGetPriority(stream_, &priority));
  Say("context", cuStreamGetCtx(stream_, &its));
  Say("capturing", cuStreamIsCapturing(stream_, &capture));
  OK(cuCtxSetCurrent(context_));
  OK(cuCtxSynchronize());
}

}  // namespace
}  // namespace causeway::driver_test
