// SPDX-License-Identifier: Apache-2.0
// When work that may touch managed memory counts as under way (guest_lib/managed/work.h): a message is begun,
// named, sent and answered here as PendingPost and ChannelLease do it. Every test leaves nothing under way.
#include "guest_lib/managed/work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <initializer_list>
#include <thread>

#include "guest_lib/managed/pager.h"

namespace causeway::guest {

void GiveBackManagedPages() {}
void ExchangeManagedPages() {}
void RestoreManagedPages() {}

namespace {

constexpr WireHandle kContext = 1, kOtherContext = 2, kA = 11, kB = 12, kBlocking = 13, kOthers = 14,
                     kEvent = 21;

class ManagedWorkTest : public testing::Test {
 protected:
  void SetUp() override {
    work::BeginWatch();
    EXPECT_TRUE(work::under_way);
    Wait(Op::cuCtxSynchronize, 0);
    ASSERT_FALSE(work::under_way);
  }
  void TearDown() override { work::EndWatch(); }
  static void Name(MessageMark& mark, Op op, WireHandle stream, WireHandle event, WireHandle context) {
    mark.Begin();
    mark.Start(op);
    if (stream != 0) work::NameStream(stream, stream == kOthers ? kOtherContext : 0, stream == kBlocking);
    if (event != 0) work::NameEvent(event);
    mark.Named(context);
  }
  static void Post(Op op, WireHandle stream, WireHandle event = 0, WireHandle context = kContext) {
    MessageMark mark;
    Name(mark, op, stream, event, context);
    mark.Sent();
  }
  static void Answer(MessageMark& mark, bool success) {
    mark.Sent();
    mark.Answered(success);
    mark.Finish();
  }
  static void Wait(Op op, WireHandle stream, WireHandle event = 0, WireHandle context = kContext,
                   bool success = true) {
    MessageMark mark;
    Name(mark, op, stream, event, context);
    Answer(mark, success);
  }
};

TEST_F(ManagedWorkTest, EachStreamIsWaitedForAlone) {
  Post(Op::cuLaunchKernel, kA);
  Post(Op::cuLaunchKernel, kB);
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamSynchronize, 0);  // the legacy stream's waits mean no others
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamQuery, kB, 0, kContext, false);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamQuery, kB);
  EXPECT_FALSE(work::under_way);
}

TEST_F(ManagedWorkTest, ACopyWaitsForItsStreamOnly) {
  Post(Op::cuLaunchKernel, kA);
  Wait(Op::cuMemcpyDtoH_v2, 0);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuMemcpyDtoH_v2, kA);
  EXPECT_FALSE(work::under_way);
  Wait(Op::cuMemcpyHtoD_v2, 0);
  EXPECT_FALSE(work::under_way);
}

TEST_F(ManagedWorkTest, AContextIsWaitedForAsAWhole) {
  Post(Op::cuLaunchKernel, kA);
  Post(Op::cuLaunchKernel, 0);
  Post(Op::cuLaunchKernel, kB, 0, kOtherContext);
  Wait(Op::cuCtxSynchronize, 0);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuCtxSynchronize, 0, 0, kOtherContext);
  EXPECT_FALSE(work::under_way);
}

// Whatever context is current where work is sent to a stream, it is waited for with the stream's own.
TEST_F(ManagedWorkTest, AStreamBelongsToItsContext) {
  Post(Op::cuMemcpyHtoDAsync_v2, kOthers, 0, kContext);
  Wait(Op::cuCtxSynchronize, 0, 0, kContext);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuCtxSynchronize, 0, 0, kOtherContext);
  EXPECT_FALSE(work::under_way);
}

TEST_F(ManagedWorkTest, AnEventStandsForWhatCameBeforeItOnItsStream) {
  Post(Op::cuLaunchKernel, kA);
  Post(Op::cuEventRecord, kA, kEvent);
  Post(Op::cuStreamWaitEvent, kB, kEvent);  // does not record it
  Wait(Op::cuStreamSynchronize, kB);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuEventSynchronize, 0, kEvent);
  EXPECT_FALSE(work::under_way);
  Post(Op::cuEventRecord, kA, kEvent);
  Post(Op::cuLaunchKernel, kA);
  Wait(Op::cuEventQuery, 0, kEvent);
  EXPECT_TRUE(work::under_way);
  Post(Op::cuEventRecord, kB, kEvent);  // says no more of A
  Wait(Op::cuEventQuery, 0, kEvent);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_FALSE(work::under_way);
}

TEST_F(ManagedWorkTest, BlockingStreamsAndTheLegacyStreamWaitForEachOther) {
  Post(Op::cuMemsetD8Async, 0);
  Post(Op::cuLaunchKernel, kBlocking);
  Wait(Op::cuStreamSynchronize, kBlocking);
  EXPECT_FALSE(work::under_way);
  Post(Op::cuLaunchKernel, kBlocking);
  Post(Op::cuMemsetD8Async, 0);
  Wait(Op::cuStreamSynchronize, kBlocking);
  EXPECT_TRUE(work::under_way);
  Post(Op::cuLaunchKernel, kBlocking);
  Wait(Op::cuMemcpyDtoH_v2, 0);
  EXPECT_FALSE(work::under_way);
  Post(Op::cuMemsetD8Async, 0);
  Post(Op::cuLaunchKernel, kA);
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuCtxSynchronize, 0);
  EXPECT_FALSE(work::under_way);
}

TEST_F(ManagedWorkTest, LoadingCodeLeavesNoWork) {
  Wait(Op::cuModuleLoadDataEx, 0);
  EXPECT_FALSE(work::under_way);
  Post(Op::cuLaunchKernel, kA);
  Wait(Op::cuModuleGetFunction, 0);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_FALSE(work::under_way);
}

// A graph may record any event, on the device.
TEST_F(ManagedWorkTest, AfterAGraphNoEventIsBelieved) {
  Post(Op::cuLaunchKernel, kA);
  Post(Op::cuEventRecord, kA, kEvent);
  Post(Op::cuGraphLaunch, kB);
  Wait(Op::cuStreamSynchronize, kB);
  Wait(Op::cuEventSynchronize, 0, kEvent);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_FALSE(work::under_way);
}

// Another thread's message goes out while this one waits: before or after, nobody knows.
TEST_F(ManagedWorkTest, WhatIsSentMeanwhileIsNotDone) {
  for (const Op op : {Op::cuStreamSynchronize, Op::cuCtxSynchronize, Op::cuMemcpyDtoH_v2}) {
    Post(Op::cuLaunchKernel, kA);
    MessageMark wait;
    Name(wait, op, kA, 0, kContext);
    Post(Op::cuLaunchKernel, kA);
    Answer(wait, true);
    EXPECT_TRUE(work::under_way);
    MessageMark begun;
    Name(begun, Op::cuLaunchKernel, kA, 0, kContext);
    Wait(Op::cuStreamSynchronize, kA);
    EXPECT_TRUE(work::under_way);
    begun.Sent();
    Wait(Op::cuStreamSynchronize, kA);
    EXPECT_FALSE(work::under_way);
  }
}

TEST_F(ManagedWorkTest, WhatWentToSeveralStreamsNeedsTheContext) {
  Post(Op::cuLaunchCooperativeKernelMultiDevice, work::kSeveral);
  Wait(Op::cuStreamSynchronize, kA);
  Wait(Op::cuStreamSynchronize, 0);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuCtxSynchronize, 0);
  EXPECT_FALSE(work::under_way);
}

TEST_F(ManagedWorkTest, AMessageThatWasNeverSentIsNoWork) {
  {
    MessageMark mark;
    mark.Begin();
    mark.Start(Op::cuLaunchKernel);
    EXPECT_TRUE(work::under_way);
  }
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_FALSE(work::under_way);
}

// Nothing is known of what was sent before; what is known of this watch's own counts.
TEST_F(ManagedWorkTest, EachWatchBeginsAnew) {
  Post(Op::cuLaunchKernel, kA);
  Post(Op::cuEventRecord, kA, kEvent);
  work::EndWatch();
  EXPECT_FALSE(work::IsWatched());
  Post(Op::cuLaunchKernel, kA);
  work::BeginWatch();
  EXPECT_TRUE(work::IsWatched());
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamSynchronize, kB);
  EXPECT_FALSE(work::under_way);
  Post(Op::cuLaunchKernel, kA);
  Wait(Op::cuEventSynchronize, 0, kEvent);  // recorded before this watch
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_FALSE(work::under_way);
}

TEST_F(ManagedWorkTest, AMessageCountsInTheWatchInWhichItWasBegun) {
  {
    MessageMark unsent;
    MessageMark launch;
    MessageMark wait;
    unsent.Begin();
    unsent.Start(Op::cuLaunchKernel);
    Name(launch, Op::cuLaunchKernel, kA, 0, kContext);
    Name(wait, Op::cuStreamSynchronize, kA, 0, kContext);
    work::EndWatch();
    MessageMark unwatched;
    unwatched.Begin();
    work::BeginWatch();
    unwatched.Start(Op::cuLaunchKernel);
    work::NameStream(kA, 0, false);
    unwatched.Named(kContext);
    launch.Sent();
    unwatched.Sent();
    Post(Op::cuLaunchKernel, kA);
    Answer(wait, true);
    EXPECT_TRUE(work::under_way);
  }
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_FALSE(work::under_way);
}

TEST_F(ManagedWorkTest, WatchesComeAndGoWhileOthersSend) {
  constexpr uint32_t kSenders = 3, kRounds = 5000;
  std::atomic<uint32_t> rounds{0};
  std::atomic<bool> stop{false};
  std::thread senders[kSenders];
  for (std::thread& sender : senders) {
    sender = std::thread([&] {
      for (uint32_t i = 0; !stop.load(); rounds.store(++i)) {
        Post(Op::cuLaunchKernel, i % 2 == 0 ? kA : kB);
        if (i % 3 == 0) Wait(Op::cuCtxSynchronize, 0);
        MessageMark unsent;
        unsent.Begin();
        unsent.Start(Op::cuLaunchKernel);
      }
    });
  }
  while (rounds.load() < kRounds) {
    work::EndWatch();
    std::this_thread::yield();
    work::BeginWatch();
  }
  stop.store(true);
  for (std::thread& sender : senders) sender.join();
  // None of their messages is left to be waited for.
  Wait(Op::cuCtxSynchronize, 0);
  EXPECT_FALSE(work::under_way);
}

}  // namespace
}  // namespace causeway::guest
