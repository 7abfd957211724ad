// SPDX-License-Identifier: Apache-2.0
// Events made with CU_EVENT_BLOCKING_SYNC, when waits for them are of all kinds: whatever a library has made
// of waits in which nothing was left to do, the event is the one that was recorded last, wherever it is
// named.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class BlockingEventTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other_, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event_, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&data_, 4096));
    spin_ = Kernel("spin");
    Train(event_);
  }
  // Waits that are alike, each behind all that its stream has.
  void Train(CUevent event) {
    for (int i = 0; i < 8; ++i) {
      OK(cuMemsetD8Async(data_, 1, 64, stream_));
      OK(cuEventRecord(event, stream_));
      OK(cuEventSynchronize(event));
    }
  }
  // Recorded behind the spinner, the event is not done before that ends.
  void IsBehind(Spinner& spinner, CUevent event) {
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    OK(cuStreamWaitEvent(other_, event, 0));
    EXPECT_EQ(cuStreamQuery(other_), CUDA_ERROR_NOT_READY);
    EXPECT_TRUE(Waits(spinner, [&] { OK(cuEventSynchronize(event)); }));
    EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
    OK(cuStreamSynchronize(other_));
  }

  CUstream stream_ = nullptr, other_ = nullptr;
  CUevent event_ = nullptr;
  CUdeviceptr data_ = 0;
  CUfunction spin_ = nullptr;
};

TEST_F(BlockingEventTest, NothingBehindIt) {
  for (int round = 0; round < 3; ++round) {
    Spinner spinner(spin_, stream_);
    OK(cuEventRecord(event_, stream_));
    IsBehind(spinner, event_);
    Train(event_);
  }
}

// Its stream goes on, so that only the event itself tells.
TEST_F(BlockingEventTest, WorkBehindIt) {
  for (int round = 0; round < 3; ++round) {
    Spinner first(spin_, stream_);
    OK(cuEventRecord(event_, stream_));
    {
      Spinner second(spin_, stream_);
      IsBehind(first, event_);
      EXPECT_EQ(cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
    }
    OK(cuStreamSynchronize(stream_));
    if (round != 0) Train(event_);
  }
}

TEST_F(BlockingEventTest, RecordedAgainElsewhere) {
  Spinner spinner(spin_, stream_);
  OK(cuEventRecord(event_, stream_));
  OK(cuEventRecord(event_, other_));
  EXPECT_EQ(cuEventSynchronize(event_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
  OK(cuEventRecordWithFlags(event_, stream_, CU_EVENT_RECORD_DEFAULT));
  EXPECT_EQ(cuEventQuery(event_), CUDA_ERROR_NOT_READY);
  EXPECT_TRUE(Waits(spinner, [&] { OK(cuEventSynchronize(event_)); }));
}

TEST_F(BlockingEventTest, ElapsedTime) {
  CUevent begin = nullptr, end = nullptr;
  float milliseconds = -1;
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, event_, event_), CUDA_ERROR_INVALID_HANDLE);  // untimed
  OK(cuEventCreate(&begin, CU_EVENT_BLOCKING_SYNC));
  OK(cuEventCreate(&end, CU_EVENT_BLOCKING_SYNC));
  OK(cuEventRecord(begin, stream_));
  OK(cuEventSynchronize(begin));
  Train(end);
  {
    Spinner spinner(spin_, stream_);
    OK(cuEventRecord(end, stream_));
    EXPECT_EQ(cuEventElapsedTime(&milliseconds, begin, end), CUDA_ERROR_NOT_READY);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  OK(cuEventSynchronize(end));
  OK(cuEventElapsedTime(&milliseconds, begin, end));
  EXPECT_GE(milliseconds, 20.0F);
  Train(begin);
  OK(cuEventElapsedTime(&milliseconds, begin, end));
  EXPECT_LT(milliseconds, 0.0F);
  OK(cuEventDestroy(begin));
  OK(cuEventDestroy(end));
}

// A graph records the event, or waits for it, whenever it is launched, also after records that are none of
// its own.
TEST_F(BlockingEventTest, NodesOfGraphs) {
  CUgraphNode node = nullptr;
  CUevent begin = nullptr, timed = nullptr, named = nullptr;
  OK(cuEventCreate(&begin, CU_EVENT_BLOCKING_SYNC));
  OK(cuEventCreate(&timed, CU_EVENT_BLOCKING_SYNC));
  for (const bool trained : {false, true}) {
    if (trained) Train(timed);
    CUgraph graphs[2] = {};
    CUgraphExec record = nullptr, wait = nullptr;
    for (CUgraph& graph : graphs) OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddEventRecordNode(&node, graphs[0], nullptr, 0, timed));
    OK(cuGraphEventRecordNodeGetEvent(node, &named));
    EXPECT_EQ(named, timed);
    OK(cuGraphAddEventWaitNode(&node, graphs[1], nullptr, 0, timed));
    OK(cuGraphEventWaitNodeGetEvent(node, &named));
    EXPECT_EQ(named, timed);
    OK(cuGraphInstantiate(&record, graphs[0], 0));
    OK(cuGraphInstantiate(&wait, graphs[1], 0));
    Train(timed);
    OK(cuEventRecord(begin, stream_));
    OK(cuEventSynchronize(begin));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    OK(cuGraphLaunch(record, stream_));
    OK(cuStreamSynchronize(stream_));
    OK(cuEventSynchronize(timed));
    float milliseconds = -1;
    OK(cuEventElapsedTime(&milliseconds, begin, timed));
    EXPECT_GE(milliseconds, 20.0F);
    Train(timed);
    Spinner spinner(spin_, stream_);
    OK(cuEventRecord(timed, stream_));
    OK(cuGraphLaunch(wait, other_));
    EXPECT_EQ(cuStreamQuery(other_), CUDA_ERROR_NOT_READY);
    EXPECT_TRUE(Waits(spinner, [&] { OK(cuEventSynchronize(timed)); }));
    OK(cuStreamSynchronize(other_));
    for (CUgraph graph : graphs) OK(cuGraphDestroy(graph));
    OK(cuGraphExecDestroy(record));
    OK(cuGraphExecDestroy(wait));
    OK(cuEventDestroy(timed));
    OK(cuEventCreate(&timed, CU_EVENT_BLOCKING_SYNC));
  }
  OK(cuEventDestroy(begin));
}

TEST_F(BlockingEventTest, Captures) {
  CUgraph graph = nullptr;
  size_t nodes = 0;
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemsetD8Async(data_, 2, 64, stream_));
  OK(cuEventRecord(event_, stream_));
  OK(cuStreamWaitEvent(other_, event_, 0));
  OK(cuMemsetD8Async(data_ + 64, 3, 64, other_));
  CUevent join = nullptr;
  OK(cuEventCreate(&join, CU_EVENT_BLOCKING_SYNC));
  OK(cuEventRecord(join, other_));
  OK(cuStreamWaitEvent(stream_, join, 0));
  OK(cuEventRecordWithFlags(event_, stream_, CU_EVENT_RECORD_EXTERNAL));
  OK(cuStreamEndCapture(stream_, &graph));
  OK(cuGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 3u);
  OK(cuGraphDestroy(graph));
  Train(event_);
  Train(join);
  // What a capture has recorded is nothing to wait for.
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuEventRecord(join, stream_));
  const CUresult queried = cuEventQuery(join);
  EXPECT_EQ(queried, CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_NE(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  Say("synchronize", static_cast<int>(cuEventSynchronize(join)));
  Train(join);
  OK(cuEventDestroy(join));
}

// Whoever waits for it goes on when it is destroyed.
TEST_F(BlockingEventTest, DestroyedWhileAwaited) {
  for (int i = 0; i < 20; ++i) {
    CUevent event = nullptr;
    OK(cuEventCreate(&event, CU_EVENT_BLOCKING_SYNC));
    if (i % 2 != 0) Train(event);
    Spinner spinner(spin_, stream_);
    OK(cuEventRecord(event, stream_));
    OK(cuStreamWaitEvent(other_, event, 0));
    OK(cuEventDestroy(event));
    EXPECT_EQ(cuStreamQuery(other_), CUDA_ERROR_NOT_READY);
    spinner.Release();
    OK(cuStreamSynchronize(other_));
  }
}

// Each of the threads knows of its own records only; the last one counts.
TEST_F(BlockingEventTest, SeveralThreads) {
  constexpr int kThreads = 4, kRounds = 50;
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto good = [&](CUresult result) { failures += result != CUDA_SUCCESS; };
      CUstream stream = nullptr;
      good(cuCtxSetCurrent(context_));
      good(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      for (int i = 0; i < kRounds; ++i) {
        good(cuMemsetD8Async(data_ + 64 * static_cast<unsigned>(t), 1, 64, stream));
        good(cuEventRecord(event_, stream));
        good(cuStreamWaitEvent(stream, event_, 0));
        if (i % 3 == 0) good(cuMemsetD8Async(data_ + 64 * static_cast<unsigned>(t), 2, 64, stream));
        good(cuEventSynchronize(event_));
      }
      good(cuStreamSynchronize(stream));
      good(cuStreamDestroy(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
  OK(cuCtxSynchronize());
  EXPECT_EQ(cuEventQuery(event_), CUDA_SUCCESS);
}

}  // namespace
}  // namespace causeway::driver_test
