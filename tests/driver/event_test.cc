// SPDX-License-Identifier: Apache-2.0
// Census category event.
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class EventTest : public AddTest {
 protected:
  void SetUp() override {
    AddTest::SetUp();
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other_, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event_, CU_EVENT_DEFAULT));
  }
  // A stream of the context that is current, which is not context_, may not record the event, but wait for it.
  void ExpectOnlyWaits(CUcontext second) {
    CUstream foreign = nullptr;
    OK(cuStreamCreate(&foreign, CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(cuEventRecord(event_, foreign), CUDA_ERROR_INVALID_HANDLE);
    OK(cuCtxSetCurrent(context_));
    OK(cuEventRecord(event_, stream_));
    OK(cuCtxSetCurrent(second));
    OK(cuStreamWaitEvent(foreign, event_, 0));
    OK(cuStreamSynchronize(foreign));
    OK(cuStreamDestroy(foreign));
  }
  CUstream stream_ = nullptr, other_ = nullptr;
  CUevent event_ = nullptr;
};

TEST_F(EventTest, Create) {
  CUevent event = nullptr;
  for (const unsigned flags :
       {unsigned{CU_EVENT_DEFAULT}, unsigned{CU_EVENT_BLOCKING_SYNC}, unsigned{CU_EVENT_DISABLE_TIMING},
        unsigned{CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING}}) {
    OK(cuEventCreate(&event, flags));
    EXPECT_NE(event, nullptr);
    OK(cuEventDestroy(event));
  }
  EXPECT_EQ(cuEventCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuEventCreate(&event, 0x100), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuEventCreate(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);  // needs timing disabled
  OK(cuCtxSetCurrent(nullptr));
  EXPECT_EQ(cuEventCreate(&event, 0), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuCtxSetCurrent(context_));
}

TEST_F(EventTest, NeverRecorded) {
  CUevent fresh = nullptr;
  float milliseconds = -1;
  OK(cuEventCreate(&fresh, 0));
  EXPECT_EQ(cuEventQuery(fresh), CUDA_SUCCESS);
  EXPECT_EQ(cuEventSynchronize(fresh), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(stream_, fresh, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, fresh, fresh), CUDA_ERROR_INVALID_HANDLE);
  OK(cuEventRecord(event_, stream_));
  OK(cuEventSynchronize(event_));
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, event_, fresh), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, fresh, event_), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(EventTest, QueryAndSynchronize) {
  Spinner spinner(spin_, stream_);
  OK(cuEventRecord(event_, stream_));
  EXPECT_EQ(cuEventQuery(event_), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuEventQuery(event_), CUDA_ERROR_NOT_READY);  // no error that sticks
  EXPECT_TRUE(Waits(spinner, [&] { OK(cuEventSynchronize(event_)); }));
  EXPECT_EQ(cuEventQuery(event_), CUDA_SUCCESS);
}

TEST_F(EventTest, CallsThatDoNotWait) {
  Spinner spinner(spin_, stream_);
  EXPECT_FALSE(Waits(
      spinner,
      [&] {
        CUevent event = nullptr;
        OK(cuEventCreate(&event, 0));
        OK(cuEventRecord(event, stream_));
        OK(cuStreamWaitEvent(other_, event, 0));
        OK(cuEventDestroy(event));  // the wait goes on
      },
      false));
  spinner.Release();
  OK(cuStreamSynchronize(other_));
}

TEST_F(EventTest, ElapsedTime) {
  CUevent end = nullptr, untimed = nullptr;
  float milliseconds = -1;
  OK(cuEventCreate(&end, 0));
  OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
  OK(cuEventRecord(event_, stream_));
  OK(cuEventSynchronize(event_));  // else a busy machine may begin to count late
  {
    Spinner spinner(spin_, stream_);
    OK(cuEventRecord(end, stream_));
    EXPECT_EQ(cuEventElapsedTime(&milliseconds, event_, end), CUDA_ERROR_NOT_READY);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  OK(cuEventSynchronize(end));
  OK(cuEventElapsedTime(&milliseconds, event_, end));
  EXPECT_GE(milliseconds, 20.0F);
  EXPECT_LT(milliseconds, 10'000.0F);
  OK(cuEventElapsedTime(&milliseconds, event_, event_));
  EXPECT_EQ(milliseconds, 0.0F);
  OK(cuEventElapsedTime(&milliseconds, end, event_));
  EXPECT_LE(milliseconds, -20.0F);
  OK(cuEventRecord(untimed, stream_));
  OK(cuEventSynchronize(untimed));
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, event_, untimed), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventElapsedTime(nullptr, event_, end), CUDA_ERROR_INVALID_HANDLE);
  using Elapsed = CUresult(float*, CUevent, CUevent);
  for (const char* name : {"cuEventElapsedTime", "cuEventElapsedTime_v2"}) {
    milliseconds = -1;
    OK(SymbolAs<Elapsed>(name)(&milliseconds, event_, end));
    EXPECT_GE(milliseconds, 20.0F);
  }
}

// A wait means the record that was last made when the wait was.
TEST_F(EventTest, WaitsKeepTheirRecord) {
  uint32_t value = 0;
  {
    Spinner spinner(spin_, stream_);
    OK(Add(stream_, 1));
    OK(cuEventRecord(event_, stream_));
    OK(cuStreamWaitEvent(other_, event_, 0));
    OK(cuMemcpyDtoDAsync(data_ + 64, data_, 4, other_));
    CUstream third = nullptr;
    OK(cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    OK(cuEventRecord(event_, third));  // at once complete; the wait above does not care
    OK(cuEventSynchronize(event_));
    EXPECT_EQ(cuStreamQuery(other_), CUDA_ERROR_NOT_READY);
  }
  OK(cuStreamSynchronize(other_));
  OK(cuMemcpyDtoH(&value, data_ + 64, 4));
  EXPECT_EQ(value, 1u);
}

TEST_F(EventTest, RecordWithFlags) {
  OK(cuEventRecordWithFlags(event_, stream_, CU_EVENT_RECORD_DEFAULT));
  OK(cuEventSynchronize(event_));
  Say("external_outside_a_capture",
      static_cast<int>(cuEventRecordWithFlags(event_, stream_, CU_EVENT_RECORD_EXTERNAL)));
  EXPECT_EQ(cuEventRecordWithFlags(event_, stream_, 0x40), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitEvent(stream_, event_, 0x40), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(EventTest, NullHandles) {
  float milliseconds = 0;
  EXPECT_EQ(cuEventRecord(nullptr, stream_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventQuery(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventSynchronize(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, nullptr, event_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamWaitEvent(stream_, nullptr, 0), CUDA_ERROR_INVALID_HANDLE);
}

// The event must be of the stream's context to be recorded; any stream may wait for it.
TEST_F(EventTest, OtherContexts) {
  CUcontext second = nullptr;
  OK(cuCtxCreate(&second, nullptr, 0, 0));
  ExpectOnlyWaits(second);
  OK(cuCtxDestroy(second));
  OK(cuCtxSetCurrent(context_));
}

TEST_F(EventTest, OtherDevices) {
  int count = 0;
  OK(cuDeviceGetCount(&count));
  if (count < 2) GTEST_SKIP() << "one device";
  CUcontext second = nullptr;
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  OK(cuCtxSetCurrent(second));
  ExpectOnlyWaits(second);
  OK(cuDevicePrimaryCtxRelease(1));
  OK(cuCtxSetCurrent(context_));
}

TEST_F(EventTest, LegacyStreamRecordsEverything) {
  CUstream blocking = nullptr;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  Spinner spinner(spin_, blocking);
  OK(cuEventRecord(event_, nullptr));
  EXPECT_EQ(cuEventQuery(event_), CUDA_ERROR_NOT_READY);
  spinner.Release();
  OK(cuEventSynchronize(event_));
  EXPECT_EQ(cuStreamQuery(blocking), CUDA_SUCCESS);
}

// The per-thread forms, by the pointers that the runtime gets.
TEST_F(EventTest, PerThreadForms) {
  decltype(&cuEventRecord) record = nullptr;
  decltype(&cuEventRecordWithFlags) record_with_flags = nullptr;
  constexpr auto kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  OK(cuGetProcAddress("cuEventRecord", reinterpret_cast<void**>(&record), 13000, kPerThread, nullptr));
  OK(cuGetProcAddress("cuEventRecordWithFlags", reinterpret_cast<void**>(&record_with_flags), 13000,
                      kPerThread, nullptr));
  Spinner spinner(spin_, stream_);  // non-blocking: of no concern to the thread's stream
  OK(record(event_, nullptr));
  OK(cuEventSynchronize(event_));
  OK(record_with_flags(event_, nullptr, 0));
  OK(cuEventSynchronize(event_));
}

// Where several contexts or green contexts are one event's concern.
TEST_F(EventTest, ContextEvents) {
  NEEDS_HARDWARE("events of contexts");
  using ContextEvent = CUresult(CUcontext, CUevent);
  auto* record = SymbolAs<ContextEvent>("cuCtxRecordEvent");
  auto* wait = SymbolAs<ContextEvent>("cuCtxWaitEvent");
  ASSERT_NE(record, nullptr);
  ASSERT_NE(wait, nullptr);
  OK(Add(stream_, 1));
  const CUresult recorded = record(context_, event_);
  Say("record", static_cast<int>(recorded));
  if (recorded == CUDA_SUCCESS) {
    OK(cuEventSynchronize(event_));
    EXPECT_EQ(cuStreamQuery(stream_), CUDA_SUCCESS);
  }
  Say("wait", static_cast<int>(wait(context_, event_)));
  OK(cuCtxSynchronize());
}

}  // namespace
}  // namespace causeway::driver_test
