// SPDX-License-Identifier: Apache-2.0
// Census category stream: what a stream is, what it waits for, what waits for it.
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class StreamTest : public AddTest {
 protected:
  void SetUp() override {
    AddTest::SetUp();
    OK(cuStreamCreate(&blocking_, CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&free_, CU_STREAM_NON_BLOCKING));
  }
  CUstream blocking_ = nullptr, free_ = nullptr;
};

TEST_F(StreamTest, CreateAndDestroy) {
  CUstream stream = nullptr;
  unsigned flags = 99;
  for (const unsigned wanted : {unsigned{CU_STREAM_DEFAULT}, unsigned{CU_STREAM_NON_BLOCKING}}) {
    OK(cuStreamCreate(&stream, wanted));
    OK(cuStreamGetFlags(stream, &flags));
    EXPECT_EQ(flags, wanted);
    OK(cuStreamDestroy(stream));
  }
  EXPECT_EQ(cuStreamCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamCreate(&stream, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamCreateWithPriority(nullptr, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamCreateWithPriority(&stream, 4, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
  OK(cuCtxSetCurrent(nullptr));
  EXPECT_EQ(cuStreamCreate(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuCtxSetCurrent(context_));
  // The handles of destroyed streams are for the library to recognise; NVIDIA's need not.
  if (OnSoftwareGpu()) {
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamDestroy(stream));
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuStreamDestroy(stream), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(Add(stream, 1), CUDA_ERROR_INVALID_HANDLE);
  }
  using Destroy = CUresult(CUstream);
  for (const char* name : {"cuStreamDestroy", "cuStreamDestroy_v2"}) {
    auto* destroy = SymbolAs<Destroy>(name);
    if (destroy == nullptr) continue;  // the software GPU has the newest alone
    OK(cuStreamCreate(&stream, 0));
    OK(destroy(stream));
  }
}

TEST_F(StreamTest, Priorities) {
  int least = 1, greatest = 1, priority = 99;
  CUstream stream = nullptr;
  OK(cuCtxGetStreamPriorityRange(&least, &greatest));
  Say("least", least);
  Say("greatest", greatest);
  EXPECT_LE(greatest, least);
  for (const int wanted : {least, greatest, least + 5, greatest - 5, -1, 0}) {
    OK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, wanted));
    OK(cuStreamGetPriority(stream, &priority));
    EXPECT_EQ(priority, std::max(greatest, std::min(least, wanted)));
    OK(cuStreamDestroy(stream));
  }
  OK(cuStreamGetPriority(nullptr, &priority));
  Say("legacy", priority);
  OK(cuCtxGetStreamPriorityRange(nullptr, nullptr));
  EXPECT_EQ(cuStreamGetPriority(blocking_, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(StreamTest, IdsContextsDevices) {
  unsigned long long one = 0, two = 0, legacy = 0, again = 0, own = 0;
  OK(cuStreamGetId(blocking_, &one));
  OK(cuStreamGetId(free_, &two));
  OK(cuStreamGetId(nullptr, &legacy));
  OK(cuStreamGetId(CU_STREAM_LEGACY, &again));
  OK(cuStreamGetId(CU_STREAM_PER_THREAD, &own));
  EXPECT_NE(one, two);
  EXPECT_NE(one, legacy);
  EXPECT_NE(own, legacy);
  EXPECT_EQ(legacy, again);
  EXPECT_EQ(cuStreamGetId(blocking_, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  CUdevice device = -1;
  unsigned flags = 99;
  for (CUstream stream : {blocking_, free_, static_cast<CUstream>(nullptr), CU_STREAM_PER_THREAD}) {
    OK(cuStreamGetCtx(stream, &context));
    EXPECT_EQ(context, context_);
    OK(cuStreamGetDevice(stream, &device));
    EXPECT_EQ(device, 0);
    context = nullptr;
    OK(SymbolAs<CUresult(CUstream, CUcontext*, CUgreenCtx*)>("cuStreamGetCtx_v2")(stream, &context, &green));
    EXPECT_EQ(context, context_);
    EXPECT_EQ(green, nullptr);
    OK(cuStreamGetFlags(stream, &flags));
    EXPECT_EQ(flags, stream == free_ ? 1u : 0u);
  }
  EXPECT_EQ(cuStreamGetFlags(blocking_, nullptr), CUDA_ERROR_INVALID_VALUE);
}

// A program may ask with any context current.
TEST_F(StreamTest, EitherContextAlone) {
  CUgreenCtx green = nullptr;
  auto* get = SymbolAs<CUresult(CUstream, CUcontext*, CUgreenCtx*)>("cuStreamGetCtx_v2");
  ASSERT_NE(get, nullptr);
  EXPECT_EQ(get(free_, nullptr, &green), CUDA_SUCCESS);
  EXPECT_EQ(green, nullptr);
  CUcontext context = nullptr, current = nullptr;
  EXPECT_EQ(get(free_, &context, nullptr), CUDA_SUCCESS);
  OK(cuCtxGetCurrent(&current));
  EXPECT_EQ(context, current);
}

TEST_F(StreamTest, StreamsOfAnotherContext) {
  CUcontext second = nullptr, found = nullptr;
  CUstream foreign = nullptr;
  OK(cuCtxCreate(&second, nullptr, 0, 0));
  OK(cuStreamCreate(&foreign, CU_STREAM_NON_BLOCKING));
  OK(cuStreamGetCtx(foreign, &found));
  EXPECT_EQ(found, second);
  OK(cuStreamGetCtx(free_, &found));
  EXPECT_EQ(found, context_);
  OK(cuCtxSetCurrent(context_));
  OK(cuStreamQuery(foreign));
  OK(cuStreamSynchronize(foreign));
  Say("launch", static_cast<int>(Add(foreign, 1)));
  OK(cuCtxDestroy(second));
  OK(cuCtxSetCurrent(context_));
}

TEST_F(StreamTest, Attributes) {
  CUstreamAttrValue value{};
  OK(cuStreamGetAttribute(free_, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  EXPECT_EQ(static_cast<int>(value.syncPolicy), -1);  // none is set
  value.syncPolicy = CU_SYNC_POLICY_YIELD;
  OK(cuStreamSetAttribute(free_, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  value = {};
  OK(cuStreamGetAttribute(free_, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  EXPECT_EQ(value.syncPolicy, CU_SYNC_POLICY_YIELD);
  OK(cuStreamCopyAttributes(blocking_, free_));
  value = {};
  OK(cuStreamGetAttribute(blocking_, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  EXPECT_EQ(value.syncPolicy, CU_SYNC_POLICY_YIELD);
  OK(cuStreamGetAttribute(free_, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  Say("priority", value.priority);
  OK(cuStreamGetAttribute(free_, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
  Say("domain", static_cast<int>(value.memSyncDomain));
  Say("unknown", static_cast<int>(cuStreamGetAttribute(free_, static_cast<CUstreamAttrID>(1234), &value)));
  Say("cooperative", static_cast<int>(cuStreamGetAttribute(free_, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value)));
}

// Section 6.1 of the interface's facts: what waits while a stream that legacy orders with is busy, ...
TEST_F(StreamTest, WhatWaitsForABlockingStream) {
  uint32_t host = 0;
  uint32_t* pinned = nullptr;
  CUdeviceptr extra = 0;
  OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned), 4096));
  auto waits = [&](const char* what, bool expected, auto call) {
    SCOPED_TRACE(what);
    Spinner spinner(spin_, blocking_);
    EXPECT_EQ(Waits(
                  spinner, [&] { EXPECT_EQ(call(), CUDA_SUCCESS); }, expected),
              expected);
    spinner.Release();
    OK(cuStreamSynchronize(blocking_));
  };
  waits("HtoD", true, [&] { return cuMemcpyHtoD(data_, &host, 4); });
  waits("DtoH", true, [&] { return cuMemcpyDtoH(&host, data_, 4); });
  waits("HtoD pinned", true, [&] { return cuMemcpyHtoD(data_, pinned, 4); });
  waits("DtoD", false, [&] { return cuMemcpyDtoD(data_ + 64, data_, 4); });
  waits("memset", false, [&] { return cuMemsetD8(data_, 0, 64); });
  waits("MemAlloc", false, [&] { return cuMemAlloc(&extra, 256); });
  waits("MemFree", true, [&] { return cuMemFree(extra); });
  waits("StreamSynchronize of legacy", true, [&] { return cuStreamSynchronize(nullptr); });
  waits("StreamSynchronize of another", false, [&] { return cuStreamSynchronize(free_); });
  waits("CtxSynchronize", true, [&] { return cuCtxSynchronize(); });
  waits("launch on legacy", false, [&] { return Add(nullptr, 1); });
  waits("host function", false, [&] {
    return cuLaunchHostFunc(
        blocking_, [](void*) {}, nullptr);
  });
  waits("MemGetInfo", false, [&] {
    size_t free = 0, total = 0;
    return cuMemGetInfo(&free, &total);
  });
  OK(cuMemFreeHost(pinned));
}

// ... and while only one that it does not order with is.
TEST_F(StreamTest, WhatWaitsForANonBlockingStream) {
  uint32_t host = 0;
  CUdeviceptr extra = 0;
  auto waits = [&](const char* what, bool expected, auto call) {
    SCOPED_TRACE(what);
    Spinner spinner(spin_, free_);
    EXPECT_EQ(Waits(
                  spinner, [&] { EXPECT_EQ(call(), CUDA_SUCCESS); }, expected),
              expected);
    spinner.Release();
    OK(cuStreamSynchronize(free_));
  };
  waits("HtoD", false, [&] { return cuMemcpyHtoD(data_, &host, 4); });
  waits("DtoH", false, [&] { return cuMemcpyDtoH(&host, data_, 4); });
  waits("StreamSynchronize of legacy", false, [&] { return cuStreamSynchronize(nullptr); });
  waits("MemAlloc", false, [&] { return cuMemAlloc(&extra, 256); });
  waits("MemFree", true, [&] { return cuMemFree(extra); });
  waits("CtxSynchronize", true, [&] { return cuCtxSynchronize(); });
  waits("StreamDestroy of a busy stream", false, [&] {
    CUstream stream = nullptr;
    if (const CUresult result = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)) return result;
    if (const CUresult result = Add(stream, 1)) return result;
    return cuStreamDestroy(stream);
  });
}

TEST_F(StreamTest, LegacyOrdersWithBlockingStreams) {
  uint32_t value = 0;
  for (uint32_t round = 1; round <= 20; ++round) {
    OK(Add(blocking_, 1));
    OK(Add(nullptr, 1));
    OK(Add(blocking_, 1));
    OK(cuMemcpyDtoDAsync(data_ + 64, data_, 4, nullptr));
    OK(cuMemcpyDtoH(&value, data_ + 64, 4));
    EXPECT_EQ(value, 3 * round);
  }
}

TEST_F(StreamTest, QueryTellsTheState) {
  EXPECT_EQ(cuStreamQuery(free_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_SUCCESS);
  {
    Spinner spinner(spin_, blocking_);
    EXPECT_EQ(cuStreamQuery(blocking_), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuStreamQuery(free_), CUDA_SUCCESS);
  }
  OK(cuStreamSynchronize(blocking_));
  EXPECT_EQ(cuStreamQuery(blocking_), CUDA_SUCCESS);
}

TEST_F(StreamTest, DestroyedStreamsFinishTheirWork) {
  CUstream stream = nullptr;
  uint32_t value = 0;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  {
    Spinner spinner(spin_, stream);
    OK(Add(stream, 5));
    OK(cuStreamDestroy(stream));
  }
  OK(cuCtxSynchronize());
  OK(cuMemcpyDtoH(&value, data_, 4));
  EXPECT_EQ(value, 5u);
}

// Each thread has a stream of its own behind the same handle; it is a blocking stream.
TEST_F(StreamTest, PerThreadStreams) {
  unsigned long long here = 0, there = 0;
  OK(cuStreamGetId(CU_STREAM_PER_THREAD, &here));
  Spinner spinner(spin_, CU_STREAM_PER_THREAD);
  EXPECT_EQ(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  CUresult other = CUDA_ERROR_UNKNOWN;
  std::thread thread([&] {
    if (cuCtxSetCurrent(context_) != CUDA_SUCCESS) return;
    if (cuStreamGetId(CU_STREAM_PER_THREAD, &there) != CUDA_SUCCESS) return;
    other = cuStreamQuery(CU_STREAM_PER_THREAD);
  });
  thread.join();
  EXPECT_EQ(other, CUDA_SUCCESS);
  EXPECT_NE(here, there);
  unsigned flags = 9;
  OK(cuStreamGetFlags(CU_STREAM_PER_THREAD, &flags));
  EXPECT_EQ(flags, unsigned{CU_STREAM_DEFAULT});
  Say("destroy", static_cast<int>(cuStreamDestroy(CU_STREAM_PER_THREAD)));
  spinner.Release();
  OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
}

TEST_F(StreamTest, PerThreadForms) {
  decltype(&cuStreamQuery) query = nullptr;
  decltype(&cuStreamSynchronize) synchronize = nullptr;
  constexpr auto kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  OK(cuGetProcAddress("cuStreamQuery", reinterpret_cast<void**>(&query), 13000, kPerThread, nullptr));
  OK(cuGetProcAddress("cuStreamSynchronize", reinterpret_cast<void**>(&synchronize), 13000, kPerThread,
                      nullptr));
  Spinner spinner(spin_, blocking_);
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(query(nullptr), CUDA_SUCCESS);
  EXPECT_FALSE(Waits(
      spinner, [&] { OK(synchronize(nullptr)); }, false));
}

// Errors of calls that nobody waits for are still those of the call.
TEST_F(StreamTest, ErrorsAtTheCall) {
  CUevent event = nullptr;
  OK(cuEventCreate(&event, 0));
  EXPECT_EQ(cuMemcpyHtoDAsync(data_, nullptr, 4, free_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8Async(data_, 0, 2 * kDataBytes, free_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeAsync(data_ + 8, free_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitEvent(free_, event, 7), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(add_, 1, 1, 1, 2000, 1, 1, 0, free_, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  OK(cuStreamSynchronize(free_));
  OK(cuCtxSynchronize());
}

// What is asked before the context is.
TEST_F(StreamTest, WithoutAContext) {
  CUcontext before = nullptr;
  CUstream stream = nullptr;
  OK(cuCtxPopCurrent(&before));
  EXPECT_EQ(cuStreamCreateWithPriority(&stream, 3, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuStreamSynchronize(CU_STREAM_PER_THREAD), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxResetPersistingL2Cache(), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuMemFreeHost(nullptr), CUDA_SUCCESS);
  OK(cuCtxPushCurrent(before));
}

// Unknown flags come before the event; one that a graph records is waited for in captures alone.
TEST_F(StreamTest, FlagsOfWaitsForEvents) {
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
  EXPECT_EQ(cuStreamWaitEvent(free_, nullptr, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitEvent(free_, event, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitEvent(free_, nullptr, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamWaitEvent(free_, event, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_ILLEGAL_STATE);
  OK(cuEventDestroy(event));
}

TEST_F(StreamTest, AttributesOfLaunchesAlone) {
  CUstreamAttrValue value{};
  for (const auto id : {CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT})
    EXPECT_EQ(cuStreamSetAttribute(free_, id, &value), CUDA_ERROR_INVALID_VALUE);
}

// These look at their arguments before they look for captures, which they then do not break.
TEST_F(StreamTest, WrongArgumentsThatAreSeenFirst) {
  CUdeviceptr managed = 0;
  OK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  CUgraph graph = nullptr;
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(cuStreamGetDevice(stream, nullptr), CUDA_ERROR_INVALID_VALUE);
  const CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, {0}},
                      nowhere = {CU_MEM_LOCATION_TYPE_DEVICE, {99}};
  EXPECT_EQ(cuMemAdvise(managed, 4096, static_cast<CUmem_advise>(7), here), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAdvise(managed, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, nowhere), CUDA_ERROR_INVALID_VALUE);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphDestroy(graph));
  OK(cuMemFree(managed));
  OK(cuStreamDestroy(stream));
}

}  // namespace
}  // namespace causeway::driver_test
