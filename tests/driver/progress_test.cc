// SPDX-License-Identifier: Apache-2.0
// Asking what is done: a stream, event or context that was done is done until something is sent that may work
// there, by whatever way. Each test first sees its subject idle, more than once, so that whoever remembers
// that has every chance to be wrong.
#include <chrono>
#include <functional>
#include <thread>

#include "tests/driver/driver_test.h"
#include "tests/yield_until.h"

namespace causeway::driver_test {
namespace {

class ProgressTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other_, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&blocking_, CU_STREAM_DEFAULT));
    OK(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&data_, 4096));
    spin_ = Kernel("spin");
    OK(cuMemHostAlloc(reinterpret_cast<void**>(const_cast<uint32_t**>(&flag_)), 4096,
                      CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&flag_address_, const_cast<uint32_t*>(flag_), 0));
  }
  void TearDown() override {
    *flag_ = 1;
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeHost(const_cast<uint32_t*>(flag_)), CUDA_SUCCESS);
    DriverTest::TearDown();
  }

  // Occupies the stream until Release(), with nothing but a launch.
  CUresult Occupy(CUstream stream) {
    *flag_ = 0;
    void* parameters[] = {&flag_address_};
    return cuLaunchKernel(spin_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
  }
  void Release() { *flag_ = 1; }

  using Question = std::function<CUresult()>;
  static void SeeIdle(const Question& question) {
    for (int i = 0; i < 3; ++i) ASSERT_EQ(question(), CUDA_SUCCESS);
  }
  // `work` occupies something: `query` sees that at once, `wait` returns after Release() alone, and then both
  // know again that it is done.
  void Occupied(const Question& query, const Question& wait, const Question& work) {
    SeeIdle(query);
    SeeIdle(wait);
    SeeIdle(query);
    ASSERT_EQ(work(), CUDA_SUCCESS);
    EXPECT_EQ(query(), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(query(), CUDA_ERROR_NOT_READY);
    std::atomic<bool> released{false};
    std::thread releaser([&] {
      std::this_thread::sleep_for(hold_);
      released.store(true);
      Release();
    });
    EXPECT_EQ(wait(), CUDA_SUCCESS);
    EXPECT_TRUE(released.load());
    releaser.join();
    SeeIdle(query);
    SeeIdle(wait);
  }
  Question Query(CUstream stream) {
    return [stream] { return cuStreamQuery(stream); };
  }
  Question Wait(CUstream stream) {
    return [stream] { return cuStreamSynchronize(stream); };
  }
  void OccupiesStream(CUstream stream, const Question& work) { Occupied(Query(stream), Wait(stream), work); }

  CUstream stream_ = nullptr, other_ = nullptr, blocking_ = nullptr;
  CUevent event_ = nullptr;
  CUdeviceptr data_ = 0, flag_address_ = 0;
  // How long work of Occupied lasts. A wait that forgets it returns in microseconds.
  std::chrono::milliseconds hold_{20};
  CUfunction spin_ = nullptr;
  volatile uint32_t* flag_ = nullptr;
};

TEST_F(ProgressTest, WorkOfAnotherThread) {
  OccupiesStream(stream_, [&] {
    CUresult result = CUDA_ERROR_UNKNOWN;
    std::thread([&] {
      result = cuCtxSetCurrent(context_);
      if (result == CUDA_SUCCESS) result = Occupy(stream_);
    }).join();
    return result;
  });
}

TEST_F(ProgressTest, WorkOfEveryKind) {
  // Each is small and done at once, but for the kernel that it waits for.
  const Question kinds[] = {
      [&] { return cuMemsetD8Async(data_, 1, 64, stream_); },
      [&] { return cuMemcpyDtoDAsync(data_ + 64, data_, 64, stream_); },
      [&] { return cuMemcpyHtoDAsync(data_, &data_, 8, stream_); },
      [&] { return cuEventRecord(event_, stream_); },
      [&] {
        return cuLaunchHostFunc(
            stream_, [](void*) {}, nullptr);
      },
      [&] { return cuStreamWriteValue32(stream_, data_, 1, 0); },
  };
  for (const Question& kind : kinds) {
    OccupiesStream(stream_, [&] {
      if (const CUresult result = Occupy(other_)) return result;
      if (const CUresult result = cuEventRecord(event_, other_)) return result;
      if (const CUresult result = cuStreamWaitEvent(stream_, event_, 0)) return result;
      return kind();
    });
  }
}

TEST_F(ProgressTest, WaitForAnEventAlone) {
  OccupiesStream(stream_, [&] {
    if (const CUresult result = Occupy(other_)) return result;
    if (const CUresult result = cuEventRecord(event_, other_)) return result;
    return cuStreamWaitEvent(stream_, event_, 0);
  });
}

TEST_F(ProgressTest, WaitForAWord) {
  OccupiesStream(stream_, [&] {
    *flag_ = 0;
    return cuStreamWaitValue32(stream_, flag_address_, 1, CU_STREAM_WAIT_VALUE_EQ);
  });
}

TEST_F(ProgressTest, HostFunctions) {
  OccupiesStream(stream_, [&] {
    *flag_ = 0;
    return cuLaunchHostFunc(
        stream_,
        [](void* flag) { test::SleepUntil([flag] { return *static_cast<volatile uint32_t*>(flag) != 0; }); },
        const_cast<uint32_t*>(flag_));
  });
}

TEST_F(ProgressTest, GraphLaunches) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUgraphNode node = nullptr;
  OK(cuGraphCreate(&graph, 0));
  void* parameters[] = {&flag_address_};
  CUDA_KERNEL_NODE_PARAMS launch{};
  launch.func = spin_;
  launch.gridDimX = launch.gridDimY = launch.gridDimZ = 1;
  launch.blockDimX = launch.blockDimY = launch.blockDimZ = 1;
  launch.kernelParams = parameters;
  OK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &launch));
  OK(cuGraphInstantiate(&exec, graph, 0));
  OccupiesStream(stream_, [&] {
    *flag_ = 0;
    return cuGraphLaunch(exec, stream_);
  });
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
}

TEST_F(ProgressTest, EventsRecordedAgain) {
  OK(cuEventRecord(event_, other_));
  OK(cuEventSynchronize(event_));
  Occupied([&] { return cuEventQuery(event_); }, [&] { return cuEventSynchronize(event_); },
           [&] {
             if (const CUresult result = Occupy(stream_)) return result;
             return cuEventRecord(event_, stream_);
           });
}

TEST_F(ProgressTest, EventsRecordedByAnotherThread) {
  OK(cuEventRecord(event_, other_));
  OK(cuEventSynchronize(event_));
  Occupied([&] { return cuEventQuery(event_); }, [&] { return cuEventSynchronize(event_); },
           [&] {
             CUresult result = CUDA_ERROR_UNKNOWN;
             std::thread([&] {
               result = cuCtxSetCurrent(context_);
               if (result == CUDA_SUCCESS) result = Occupy(stream_);
               if (result == CUDA_SUCCESS) result = cuEventRecord(event_, stream_);
             }).join();
             return result;
           });
}

// An event is done while its stream goes on.
TEST_F(ProgressTest, EventsBeforeLaterWork) {
  OK(cuEventRecord(event_, stream_));
  OK(cuEventSynchronize(event_));
  OK(Occupy(stream_));
  SeeIdle([&] { return cuEventQuery(event_); });
  EXPECT_EQ(cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
  SeeIdle([&] { return cuEventSynchronize(event_); });
  EXPECT_EQ(cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
  Release();
  OK(cuStreamSynchronize(stream_));
}

// Often enough, and each time about as long, for whoever wants to know ahead when a wait ends.
constexpr int kRegularWaits = 6;

// They cost no processor time, so somebody may sleep until they are expected to be done.
TEST_F(ProgressTest, BlockingEvents) {
  hold_ = std::chrono::milliseconds(5);
  OK(cuEventDestroy(event_));
  OK(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
  const Question query = [&] { return cuEventQuery(event_); };
  const Question wait = [&] { return cuEventSynchronize(event_); };
  const auto occupied = [&](CUstream stream) {
    const CUresult result = Occupy(stream);
    return result == CUDA_SUCCESS ? cuEventRecord(event_, stream) : result;
  };
  for (CUstream stream : {stream_, blocking_, static_cast<CUstream>(nullptr), CU_STREAM_PER_THREAD}) {
    for (int i = 0; i < kRegularWaits; ++i) Occupied(query, wait, [&] { return occupied(stream); });
    // Earlier than the others, and then longer.
    for (int i = 0; i < 2; ++i) {
      OK(cuEventRecord(event_, stream));
      SeeIdle(wait);
    }
    hold_ *= 4;
    Occupied(query, wait, [&] { return occupied(stream); });
    hold_ /= 4;
  }
  // Done before the rest of its stream.
  for (int i = 0; i < kRegularWaits; ++i) {
    OK(cuEventRecord(event_, stream_));
    OK(Occupy(stream_));
    SeeIdle(wait);
    EXPECT_EQ(cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
    Release();
    OK(cuStreamSynchronize(stream_));
  }
  // Recorded again, elsewhere and by another thread.
  SeeIdle(wait);
  Occupied(query, wait, [&] {
    CUresult result = cuEventRecord(event_, stream_);
    std::thread([&] {
      if (result == CUDA_SUCCESS) result = cuCtxSetCurrent(context_);
      if (result == CUDA_SUCCESS) result = occupied(other_);
    }).join();
    return result;
  });
}

TEST_F(ProgressTest, BlockingContexts) {
  hold_ = std::chrono::milliseconds(5);
  unsigned before = 0;
  OK(cuCtxGetFlags(&before));
  OK(cuCtxSetFlags(CU_CTX_SCHED_BLOCKING_SYNC));
  for (CUstream stream : {stream_, blocking_, static_cast<CUstream>(nullptr)}) {
    for (int i = 0; i < kRegularWaits; ++i) OccupiesStream(stream, [&] { return Occupy(stream); });
    Occupied([&] { return cuStreamQuery(stream); }, [] { return cuCtxSynchronize(); },
             [&] { return Occupy(stream); });
  }
  OK(cuCtxSetFlags(before & CU_CTX_SCHED_MASK));
}

TEST_F(ProgressTest, ContextsWaitForEveryStream) {
  for (CUstream stream : {stream_, blocking_, static_cast<CUstream>(nullptr), CU_STREAM_PER_THREAD}) {
    Occupied([&] { return cuStreamQuery(stream); }, [] { return cuCtxSynchronize(); },
             [&] { return Occupy(stream); });
  }
}

TEST_F(ProgressTest, TheLegacyStreamWaitsForBlockingOnes) {
  for (CUstream legacy : {static_cast<CUstream>(nullptr), CU_STREAM_LEGACY}) {
    OccupiesStream(legacy, [&] { return Occupy(blocking_); });
    OccupiesStream(legacy, [&] { return Occupy(CU_STREAM_PER_THREAD); });
    OccupiesStream(legacy, [&] { return Occupy(nullptr); });
  }
}

// Work in the legacy stream holds up what is sent to a blocking stream later.
TEST_F(ProgressTest, BlockingStreamsWaitForTheLegacyOne) {
  OccupiesStream(blocking_, [&] {
    if (const CUresult result = Occupy(nullptr)) return result;
    return cuMemsetD8Async(data_, 1, 64, blocking_);
  });
}

TEST_F(ProgressTest, OtherStreamsDoNotCount) {
  SeeIdle(Wait(stream_));
  SeeIdle(Wait(nullptr));
  OK(Occupy(other_));
  SeeIdle(Query(stream_));
  SeeIdle(Wait(stream_));
  SeeIdle(Query(nullptr));
  SeeIdle(Wait(nullptr));
  EXPECT_EQ(cuStreamQuery(other_), CUDA_ERROR_NOT_READY);
  Release();
  OK(cuCtxSynchronize());
  SeeIdle(Query(other_));
}

// What is in another context is none of this one's concern, whichever is current.
TEST_F(ProgressTest, StreamsOfAnotherContext) {
  CUcontext second = nullptr;
  CUstream foreign = nullptr;
  OK(cuCtxCreate(&second, nullptr, 0, 0));
  OK(cuStreamCreate(&foreign, CU_STREAM_NON_BLOCKING));
  SeeIdle(Wait(foreign));
  OK(cuCtxSetCurrent(context_));
  SeeIdle(Wait(foreign));
  OK(Occupy(stream_));
  SeeIdle(Query(foreign));
  OK(cuCtxSetCurrent(second));
  SeeIdle([] { return cuCtxSynchronize(); });
  OK(cuCtxSetCurrent(context_));
  Release();
  OK(cuStreamSynchronize(stream_));
  Occupied(
      Query(other_), [] { return cuCtxSynchronize(); }, [&] { return Occupy(other_); });
  OK(cuCtxDestroy(second));
  OK(cuCtxSetCurrent(context_));
}

// A stream may get the handle of one that was destroyed.
TEST_F(ProgressTest, NewStreamsOnOldHandles) {
  for (int i = 0; i < 50; ++i) {
    CUstream stream = nullptr;
    CUevent event = nullptr;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    SeeIdle(Wait(stream));
    SeeIdle([&] { return cuEventQuery(event); });
    OK(Occupy(stream));
    OK(cuEventRecord(event, stream));
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    Release();
    OK(cuStreamSynchronize(stream));
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(stream));
  }
}

// What captures forbid, they forbid of idle streams too.
TEST_F(ProgressTest, WhileAnotherStreamCaptures) {
  SeeIdle(Wait(stream_));
  OK(cuEventRecord(event_, stream_));
  OK(cuStreamSynchronize(stream_));
  CUgraph graph = nullptr;
  for (const CUstreamCaptureMode mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    OK(cuStreamBeginCapture(other_, mode));
    EXPECT_EQ(cuStreamSynchronize(stream_),
              mode == CU_STREAM_CAPTURE_MODE_GLOBAL ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
    const CUresult ended = cuStreamEndCapture(other_, &graph);
    EXPECT_EQ(ended,
              mode == CU_STREAM_CAPTURE_MODE_GLOBAL ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
    if (ended == CUDA_SUCCESS) {
      OK(cuGraphDestroy(graph));
    }
  }
}

TEST_F(ProgressTest, WithoutAContext) {
  SeeIdle(Wait(nullptr));
  OK(cuCtxSetCurrent(nullptr));
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuCtxSetCurrent(context_));
}

}  // namespace
}  // namespace causeway::driver_test
