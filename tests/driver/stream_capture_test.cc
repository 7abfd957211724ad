// SPDX-License-Identifier: Apache-2.0
// Census category stream-capture: what becomes a node, what a capture forbids, at which call and in which
// thread the error is seen.
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

constexpr CUstreamCaptureMode kModes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                          CU_STREAM_CAPTURE_MODE_RELAXED};

class CaptureTest : public AddTest {
 protected:
  void SetUp() override {
    AddTest::SetUp();
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other_, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&blocking_, CU_STREAM_DEFAULT));
    OK(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
  }
  CUstreamCaptureStatus Status(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
    return status;
  }
  // Whether `call` answered `expected`, and whether the capture in stream_ still went on afterwards.
  template <class Call>
  void During(CUstreamCaptureMode mode, const char* what, CUresult expected, Call call) {
    SCOPED_TRACE(std::string(what) + " in mode " + std::to_string(mode));
    CUgraph graph = nullptr;
    OK(cuStreamBeginCapture(stream_, mode));
    EXPECT_EQ(call(), expected);
    const bool ended = expected == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
                       expected == CUDA_ERROR_STREAM_CAPTURE_ISOLATION ||
                       expected == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    EXPECT_EQ(Status(stream_),
              ended ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE);
    const CUresult end = cuStreamEndCapture(stream_, &graph);
    EXPECT_EQ(end, ended ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
    EXPECT_EQ(graph == nullptr, ended);
    Destroy(graph);
    EXPECT_EQ(Status(stream_), CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuCtxSynchronize());
  }
  static void Destroy(CUgraph graph) {
    if (graph != nullptr) {
      EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    }
  }
  static void Free(CUdeviceptr memory) { EXPECT_EQ(cuMemFree(memory), CUDA_SUCCESS); }
  static void FreeHost(void* memory) {
    if (memory != nullptr) {
      EXPECT_EQ(cuMemFreeHost(memory), CUDA_SUCCESS);
    }
  }
  size_t Nodes(CUgraph graph) {
    size_t count = 0;
    EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &count), CUDA_SUCCESS);
    return count;
  }

  CUstream stream_ = nullptr, other_ = nullptr, blocking_ = nullptr;
  CUevent event_ = nullptr;
};

TEST_F(CaptureTest, UnsafeCalls) {
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, 256));
  for (const CUstreamCaptureMode mode : kModes) {
    const CUresult expected =
        mode == CU_STREAM_CAPTURE_MODE_RELAXED ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CUdeviceptr made = 0;
    void* host = nullptr;
    During(mode, "cuMemAlloc", expected, [&] { return cuMemAlloc(&made, 256); });
    Free(made);
    During(mode, "cuMemHostAlloc", expected, [&] { return cuMemHostAlloc(&host, 4096, 0); });
    FreeHost(host);
    During(mode, "cuStreamSynchronize of another", expected, [&] { return cuStreamSynchronize(other_); });
    During(mode, "cuStreamQuery of another", expected, [&] { return cuStreamQuery(other_); });
    During(mode, "cuStreamSynchronize of legacy", expected, [&] { return cuStreamSynchronize(nullptr); });
    During(mode, "cuStreamQuery of legacy", expected, [&] { return cuStreamQuery(nullptr); });
    During(mode, "cuMemFree", expected, [&] { return cuMemFree(memory); });
    if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) memory = 0;
  }
}

TEST_F(CaptureTest, CallsOnTheCapturingStream) {
  for (const CUstreamCaptureMode mode : kModes) {
    constexpr CUresult kExpected = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    During(mode, "cuStreamSynchronize", kExpected, [&] { return cuStreamSynchronize(stream_); });
    During(mode, "cuStreamQuery", kExpected, [&] { return cuStreamQuery(stream_); });
    During(mode, "cuCtxSynchronize", kExpected, [&] { return cuCtxSynchronize(); });
    During(mode, "cuStreamAddCallback", kExpected, [&] {
      return cuStreamAddCallback(
          stream_, [](CUstream, CUresult, void*) {}, nullptr, 0);
    });
  }
}

TEST_F(CaptureTest, EventsOfTheCapture) {
  for (const CUstreamCaptureMode mode : kModes) {
    CUgraph graph = nullptr;
    OK(cuStreamBeginCapture(stream_, mode));
    OK(cuEventRecord(event_, stream_));
    EXPECT_EQ(cuEventQuery(event_), CUDA_ERROR_CAPTURED_EVENT);
    Say("status_after_query" + std::to_string(mode), static_cast<int>(Status(stream_)));
    EXPECT_EQ(cuEventSynchronize(event_), CUDA_ERROR_INVALID_VALUE);
    Say("end" + std::to_string(mode), static_cast<int>(cuStreamEndCapture(stream_, &graph)));
    Destroy(graph);
    OK(cuEventDestroy(event_));
    OK(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
  }
}

// Copies and fills that have to wait for their work, on streams that do not capture.
TEST_F(CaptureTest, CopiesThatWaitDoNotMind) {
  std::vector<uint32_t> host(64), more(64);
  void *pinned = nullptr, *second = nullptr;
  OK(cuMemAllocHost(&pinned, 256));
  OK(cuMemAllocHost(&second, 256));
  const auto device = reinterpret_cast<CUdeviceptr>(pinned), to = reinterpret_cast<CUdeviceptr>(second);
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = data_;
  rows.dstMemoryType = CU_MEMORYTYPE_HOST;
  rows.dstHost = host.data();
  rows.srcPitch = rows.dstPitch = 64;
  rows.WidthInBytes = 16;
  rows.Height = 2;
  for (const CUstreamCaptureMode mode : kModes) {
    During(mode, "fill of pinned memory", CUDA_SUCCESS, [&] { return cuMemsetD8(device, 3, 16); });
    During(mode, "copy between pinned memory", CUDA_SUCCESS, [&] { return cuMemcpy(to, device, 16); });
    During(mode, "copy between ordinary memory", CUDA_SUCCESS, [&] {
      return cuMemcpy(reinterpret_cast<CUdeviceptr>(more.data()), reinterpret_cast<CUdeviceptr>(host.data()),
                      16);
    });
    During(mode, "cuMemcpyDtoHAsync", CUDA_SUCCESS,
           [&] { return cuMemcpyDtoHAsync(host.data(), data_, 16, other_); });
    During(mode, "cuMemcpyHtoDAsync", CUDA_SUCCESS,
           [&] { return cuMemcpyHtoDAsync(data_, host.data(), 16, other_); });
    During(mode, "rows to ordinary memory", CUDA_SUCCESS, [&] { return cuMemcpy2D(&rows); });
    During(mode, "rows in another stream", CUDA_SUCCESS, [&] { return cuMemcpy2DAsync(&rows, other_); });
  }
  EXPECT_EQ(*static_cast<unsigned char*>(second), 3);
  FreeHost(pinned);
  FreeHost(second);
}

TEST_F(CaptureTest, CallsThatDoNotMind) {
  uint32_t host = 5;
  for (const CUstreamCaptureMode mode : kModes) {
    During(mode, "cuMemcpyHtoD", CUDA_SUCCESS, [&] { return cuMemcpyHtoD(data_, &host, 4); });
    During(mode, "cuMemcpyDtoH", CUDA_SUCCESS, [&] { return cuMemcpyDtoH(&host, data_, 4); });
    During(mode, "cuMemsetD8", CUDA_SUCCESS, [&] { return cuMemsetD8(data_, 0, 4); });
    During(mode, "launch on legacy", CUDA_SUCCESS, [&] { return Add(nullptr, 1); });
    During(mode, "launch on another", CUDA_SUCCESS, [&] { return Add(other_, 1); });
    During(mode, "cuMemGetInfo", CUDA_SUCCESS, [&] {
      size_t free = 0, total = 0;
      return cuMemGetInfo(&free, &total);
    });
    During(mode, "cuModuleLoadData", CUDA_SUCCESS, [&] {
      CUmodule module = nullptr;
      return cuModuleLoadData(&module, kKernels);
    });
    During(mode, "cuStreamCreate", CUDA_SUCCESS, [&] {
      CUstream made = nullptr;
      return cuStreamCreate(&made, 0);
    });
    During(mode, "cuEventCreate", CUDA_SUCCESS, [&] {
      CUevent made = nullptr;
      return cuEventCreate(&made, 0);
    });
    During(mode, "cuFuncGetAttribute", CUDA_SUCCESS, [&] {
      int value = 0;
      return cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, add_);
    });
  }
}

TEST_F(CaptureTest, WorkBecomesNodes) {
  for (const CUstreamCaptureMode mode : kModes) {
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    OK(cuMemsetD32(data_, 0, 4));
    OK(cuCtxSynchronize());
    OK(cuStreamBeginCapture(stream_, mode));
    OK(Add(stream_, 3));
    OK(cuMemsetD32Async(data_ + 64, 9, 1, stream_));
    OK(cuMemcpyDtoDAsync(data_ + 128, data_, 4, stream_));
    OK(cuLaunchHostFunc(
        stream_, [](void*) {}, nullptr));
    OK(cuStreamEndCapture(stream_, &graph));
    EXPECT_EQ(Nodes(graph), 4u);
    uint32_t value = 1;
    OK(cuMemcpyDtoH(&value, data_, 4));
    EXPECT_EQ(value, 0u);
    OK(cuGraphInstantiate(&executable, graph, 0));
    for (uint32_t i = 1; i <= 3; ++i) {
      OK(cuGraphLaunch(executable, stream_));
      OK(cuStreamSynchronize(stream_));
      OK(cuMemcpyDtoH(&value, data_ + 128, 4));
      EXPECT_EQ(value, 3 * i);
    }
    OK(cuGraphExecDestroy(executable));
    OK(cuGraphDestroy(graph));
  }
}

// Large parameters do not fit the ring that waiting calls use.
TEST_F(CaptureTest, ErrorsOfLargeCallsAreSeenAtTheCall) {
  std::vector<uint8_t> source(16 << 10, 7);
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture(blocking_, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(cuMemcpyHtoDAsync(data_, source.data(), source.size(), nullptr),
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(cuStreamEndCapture(blocking_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuCtxSynchronize());
}

TEST_F(CaptureTest, LegacyWorkEndsTheCaptureOfABlockingStream) {
  for (const CUstreamCaptureMode mode : kModes) {
    CUgraph graph = nullptr;
    OK(cuStreamBeginCapture(blocking_, mode));
    EXPECT_EQ(Add(nullptr, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(Status(blocking_), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    // Invalidated: what is captured next says so.
    EXPECT_EQ(Add(blocking_, 1), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(cuStreamEndCapture(blocking_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuCtxSynchronize());
  }
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture(blocking_, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(cuMemsetD8Async(data_, 0, 4, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(cuStreamEndCapture(blocking_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuStreamBeginCapture(blocking_, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(cuEventRecord(event_, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(cuStreamEndCapture(blocking_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuCtxSynchronize());
}

TEST_F(CaptureTest, TheLegacyStreamCannotCapture) {
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  EXPECT_EQ(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  OK(cuStreamIsCapturing(nullptr, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_ERROR_ILLEGAL_STATE);
}

// While a blocking stream captures, even to ask about the legacy stream is an error.
TEST_F(CaptureTest, AskingAboutLegacyWhileABlockingStreamCaptures) {
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  OK(cuStreamBeginCapture(blocking_, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(cuStreamEndCapture(blocking_, &graph), CUDA_SUCCESS);  // it is only asked
  Destroy(graph);
}

TEST_F(CaptureTest, PerThreadStreamCaptures) {
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(Add(CU_STREAM_PER_THREAD, 1));
  EXPECT_EQ(Status(CU_STREAM_PER_THREAD), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph));
  EXPECT_EQ(Nodes(graph), 1u);
  OK(cuGraphDestroy(graph));
}

TEST_F(CaptureTest, ForkAndJoin) {
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  CUevent joined = nullptr;
  OK(cuEventCreate(&joined, CU_EVENT_DISABLE_TIMING));
  OK(cuMemsetD32(data_, 0, 4));
  OK(cuCtxSynchronize());
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(Add(stream_, 1));
  OK(cuEventRecord(event_, stream_));
  OK(cuStreamWaitEvent(other_, event_, 0));
  EXPECT_EQ(Status(other_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(Add(other_, 10));
  OK(cuEventRecord(joined, other_));
  OK(cuStreamWaitEvent(stream_, joined, 0));
  OK(Add(stream_, 100));
  OK(cuStreamEndCapture(stream_, &graph));
  EXPECT_EQ(Status(other_), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(Nodes(graph), 3u);
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphLaunch(executable, stream_));
  OK(cuStreamSynchronize(stream_));
  uint32_t value = 0;
  OK(cuMemcpyDtoH(&value, data_, 4));
  EXPECT_EQ(value, 111u);
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
}

TEST_F(CaptureTest, UnjoinedStreams) {
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(Add(stream_, 1));
  OK(cuEventRecord(event_, stream_));
  OK(cuStreamWaitEvent(other_, event_, 0));
  OK(Add(other_, 10));
  EXPECT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(Status(stream_), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(Status(other_), CU_STREAM_CAPTURE_STATUS_NONE);
  OK(cuCtxSynchronize());
}

TEST_F(CaptureTest, OnlyTheOriginEndsIt) {
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(Add(stream_, 1));
  OK(cuEventRecord(event_, stream_));
  OK(cuStreamWaitEvent(other_, event_, 0));
  EXPECT_EQ(cuStreamEndCapture(other_, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  Say("origin", static_cast<int>(cuStreamEndCapture(stream_, &graph)));
  Destroy(graph);
  OK(cuCtxSynchronize());
}

TEST_F(CaptureTest, TwoCapturesMayNotMeet) {
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuStreamBeginCapture(other_, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(Add(stream_, 1));
  OK(cuEventRecord(event_, stream_));
  EXPECT_EQ(cuStreamWaitEvent(other_, event_, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
  EXPECT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cuStreamEndCapture(other_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuCtxSynchronize());
}

TEST_F(CaptureTest, EventsFromOutsideAreIsolated) {
  CUgraph graph = nullptr;
  OK(Add(other_, 1));
  OK(cuEventRecord(event_, other_));
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(cuStreamWaitEvent(stream_, event_, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuCtxSynchronize());
}

TEST_F(CaptureTest, BeginAndEndOutOfOrder) {
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_ILLEGAL_STATE);
  Say("end", static_cast<int>(cuStreamEndCapture(stream_, &graph)));
  Destroy(graph);
  EXPECT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(cuStreamBeginCapture(stream_, static_cast<CUstreamCaptureMode>(7)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamIsCapturing(stream_, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamEndCapture(stream_, nullptr), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_F(CaptureTest, CaptureInfo) {
  CUgraph graph = nullptr, ended = nullptr;
  cuuint64_t first = 0, second = 0;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  OK(cuStreamGetCaptureInfo(stream_, &status, nullptr, nullptr, nullptr, nullptr, nullptr));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  for (cuuint64_t* id : {&first, &second}) {
    OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuStreamGetCaptureInfo(stream_, &status, id, &graph, nullptr, nullptr, nullptr));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT_NE(graph, nullptr);
    OK(cuStreamEndCapture(stream_, &ended));
    EXPECT_EQ(graph, ended);
    OK(cuGraphDestroy(ended));
  }
  EXPECT_NE(first, second);
  EXPECT_EQ(cuStreamGetCaptureInfo(stream_, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
}

// ---- several threads
// ---------------------------------------------------------------------------------------------

// Runs `body` in a thread of its own that has the context, and waits for it.
template <class Body>
CUresult InThread(CUcontext context, Body body) {
  CUresult result = CUDA_ERROR_UNKNOWN;
  std::thread thread([&] {
    result = cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS) result = body();
  });
  thread.join();
  return result;
}

// A global capture forbids them in every thread, one that is thread-local in its own alone.
TEST_F(CaptureTest, UnsafeCallsOfOtherThreads) {
  for (const CUstreamCaptureMode mode : kModes) {
    const CUresult expected =
        mode == CU_STREAM_CAPTURE_MODE_GLOBAL ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
    CUdeviceptr made = 0;
    During(mode, "cuMemAlloc elsewhere", expected,
           [&] { return InThread(context_, [&] { return cuMemAlloc(&made, 256); }); });
    Free(made);
    During(mode, "cuStreamQuery elsewhere", expected,
           [&] { return InThread(context_, [&] { return cuStreamQuery(other_); }); });
    void* host = nullptr;
    During(mode, "cuMemHostAlloc elsewhere", expected,
           [&] { return InThread(context_, [&] { return cuMemHostAlloc(&host, 4096, 0); }); });
    FreeHost(host);
  }
}

CUresult Exchange(CUstreamCaptureMode mode, CUstreamCaptureMode* before) {
  *before = mode;
  return cuThreadExchangeStreamCaptureMode(before);
}

// A thread that takes its own calls for safe is not asked about other threads' captures.
TEST_F(CaptureTest, ExchangedModes) {
  CUdeviceptr made = 0;
  CUstreamCaptureMode before = CU_STREAM_CAPTURE_MODE_RELAXED;
  for (const CUstreamCaptureMode own : kModes) {
    const CUresult expected =
        own == CU_STREAM_CAPTURE_MODE_GLOBAL ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
    During(CU_STREAM_CAPTURE_MODE_GLOBAL, "cuMemAlloc elsewhere", expected, [&] {
      return InThread(context_, [&] {
        CUstreamCaptureMode seen = CU_STREAM_CAPTURE_MODE_RELAXED;
        if (const CUresult result = Exchange(own, &seen)) return result;
        EXPECT_EQ(seen, CU_STREAM_CAPTURE_MODE_GLOBAL);
        return cuMemAlloc(&made, 256);
      });
    });
    Free(made);
    made = 0;
  }
  // In the capturing thread itself: relaxed forgives all.
  OK(Exchange(CU_STREAM_CAPTURE_MODE_RELAXED, &before));
  EXPECT_EQ(before, CU_STREAM_CAPTURE_MODE_GLOBAL);
  for (const CUstreamCaptureMode mode : kModes) {
    During(mode, "cuMemAlloc, exchanged", CUDA_SUCCESS, [&] { return cuMemAlloc(&made, 256); });
    OK(cuMemFree(made));
  }
  OK(Exchange(CU_STREAM_CAPTURE_MODE_GLOBAL, &before));
  EXPECT_EQ(before, CU_STREAM_CAPTURE_MODE_RELAXED);
  before = static_cast<CUstreamCaptureMode>(9);  // not judged
  OK(cuThreadExchangeStreamCaptureMode(&before));
  EXPECT_EQ(before, CU_STREAM_CAPTURE_MODE_GLOBAL);
  OK(Exchange(CU_STREAM_CAPTURE_MODE_GLOBAL, &before));
}

TEST_F(CaptureTest, TheThreadThatEndsIt) {
  for (const CUstreamCaptureMode mode : kModes) {
    CUgraph graph = nullptr;
    OK(cuStreamBeginCapture(stream_, mode));
    OK(Add(stream_, 1));
    const CUresult elsewhere = InThread(context_, [&] { return cuStreamEndCapture(stream_, &graph); });
    if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
      EXPECT_EQ(elsewhere, CUDA_SUCCESS);
    } else {
      EXPECT_EQ(elsewhere, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
      Say("own" + std::to_string(mode), static_cast<int>(cuStreamEndCapture(stream_, &graph)));
    }
    Destroy(graph);
  }
}

// Other threads may add work to the capturing stream; it is captured, in the order of the calls.
TEST_F(CaptureTest, WorkOfSeveralThreads) {
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  for (int i = 0; i < 4; ++i) {
    OK(InThread(context_, [&] { return Add(stream_, 1); }));
  }
  OK(Add(stream_, 1));
  OK(cuStreamEndCapture(stream_, &graph));
  EXPECT_EQ(Nodes(graph), 5u);
  OK(cuGraphDestroy(graph));
}

// Captures of several threads at once, each for itself.
TEST_F(CaptureTest, CapturesSideBySide) {
  constexpr int kThreads = 4, kRounds = 10;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      CUstream own = nullptr;
      if (cuCtxSetCurrent(context_) != CUDA_SUCCESS ||
          cuStreamCreate(&own, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        ++wrong;
      for (int i = 0; i < kRounds; ++i) {
        CUgraph graph = nullptr;
        if (cuStreamBeginCapture(own, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) != CUDA_SUCCESS) ++wrong;
        for (int n = 0; n < 5; ++n) wrong += Add(own, 1) != CUDA_SUCCESS;
        if (cuStreamEndCapture(own, &graph) != CUDA_SUCCESS || Nodes(graph) != 5) ++wrong;
        wrong += cuGraphDestroy(graph) != CUDA_SUCCESS;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

// The form of CUDA 10.0 begins a capture beside which everything is permitted.
TEST_F(CaptureTest, TheFirstFormForbidsNothing) {
  auto* begin = SymbolAs<CUresult(CUstream)>("cuStreamBeginCapture");
  ASSERT_NE(begin, nullptr);
  CUmemoryPool pool = nullptr;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  OK(begin(stream_));
  EXPECT_EQ(cuStreamSynchronize(other_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE), CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  EXPECT_EQ(cuMemAllocFromPoolAsync(&memory, 100, pool, other_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(memory, other_), CUDA_SUCCESS);
  EXPECT_EQ(Status(stream_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(stream_, &graph));
  OK(cuGraphDestroy(graph));
}

// That the stream does not capture is said before anything of the other arguments.
TEST_F(CaptureTest, DependenciesOfAStreamThatDoesNotCapture) {
  CUgraphEdgeData edge{};
  for (CUstream stream : {stream_, CUstream{nullptr}}) {
    EXPECT_EQ(cuStreamUpdateCaptureDependencies(stream, nullptr, &edge, 0, 4), CUDA_ERROR_ILLEGAL_STATE);
    EXPECT_EQ(cuStreamUpdateCaptureDependencies(stream, nullptr, nullptr, 0, 0), CUDA_ERROR_ILLEGAL_STATE);
  }
}

// What a fill is of is looked at after the capture that it meets.
TEST_F(CaptureTest, FillsOfNothingAndOfUnknownMemory) {
  CUdeviceptr memory = 0;
  CUgraph graph = nullptr;
  OK(cuMemAlloc(&memory, 4096));
  OK(cuStreamBeginCapture(blocking_, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(cuMemsetD2D8(memory, 64, 0, 0, 16), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(Status(blocking_), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(cuMemsetD2D16Async(0xdead000, 1024, 64, 8, 4, blocking_), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cuStreamEndCapture(blocking_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cuMemsetD2D16Async(0xdead000, 1024, 64, 8, 4, blocking_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD2D8(memory, 64, 0, 0, 16), CUDA_SUCCESS);
  OK(cuMemFree(memory));
}

// In a stream whose capture is invalidated the driver answers so whatever the call's flags are: it looks at the capture first.
TEST_F(CaptureTest, ABrokenCaptureIsSaidFirst) {
  constexpr unsigned kNoSuchFlag = 8;
  CUgraph graph = nullptr;
  CUcontext context = nullptr;
  int priority = 0;
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  constexpr CUresult kBroken = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  EXPECT_EQ(cuEventRecordWithFlags(event_, stream_, kNoSuchFlag), kBroken);
  EXPECT_EQ(cuStreamWriteValue64_v2(stream_, 0, 1, kNoSuchFlag), kBroken);
  EXPECT_EQ(cuStreamGetPriority(stream_, &priority), kBroken);
  EXPECT_EQ(cuStreamGetCtx(stream_, &context), kBroken);
  EXPECT_EQ(cuStreamEndCapture(stream_, &graph), kBroken);
  EXPECT_EQ(cuEventRecordWithFlags(event_, stream_, kNoSuchFlag), CUDA_ERROR_INVALID_VALUE);
  OK(cuStreamGetPriority(stream_, &priority));
  OK(cuStreamBeginCapture(blocking_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(cuEventRecordWithFlags(event_, nullptr, kNoSuchFlag), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  cuStreamEndCapture(blocking_, &graph);
  Destroy(graph);
}

// What is to be mapped to a sparse array is looked at after the capture, too.
TEST_F(CaptureTest, MapsInACapture) {
  CUarrayMapInfo nothing{};
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(cuMemMapArrayAsync(&nothing, 1, stream_), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  Say("afterwards", static_cast<int>(Status(stream_)));
  cuStreamEndCapture(stream_, &graph);
  Destroy(graph);
}

TEST_F(CaptureTest, StreamsThatEndWhileCapturing) {
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(Add(stream_, 1));
  Say("destroy", static_cast<int>(cuStreamDestroy(stream_)));
  CUdeviceptr made = 0;
  OK(cuMemAlloc(&made, 256));
  OK(cuMemFree(made));
}

}  // namespace
}  // namespace causeway::driver_test
