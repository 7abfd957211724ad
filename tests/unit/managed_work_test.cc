// SPDX-License-Identifier: Apache-2.0
// When work that may touch managed memory counts as under way (guest_lib/session/work.h): a message is begun,
// named, sent and answered here as PendingPost and ChannelLease do it. Every test leaves nothing under way.
#include "guest_lib/session/work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <initializer_list>
#include <thread>

#include "guest_lib/session/handles.h"
#include "tests/yield_until.h"

namespace causeway::guest {
namespace {

std::atomic<uint32_t> given_back{0}, exchanged{0}, exchanged_after_the_end{0};

void GiveBack() {
  given_back.fetch_add(1);
}
void Exchange() {
  exchanged.fetch_add(1);
  if (!work::under_way) exchanged_after_the_end.fetch_add(1);
}
void Restore() {}

constexpr WireHandle kContext = 1, kOtherContext = 2, kA = 11, kB = 12, kBlocking = 13, kOthers = 14,
                     kEvent = 21;

class ManagedWorkTest : public testing::Test {
 protected:
  void SetUp() override {
    work::managed_pages = {GiveBack, Exchange, Restore};
    work::BeginWatch();
    EXPECT_TRUE(work::under_way);
    Wait(Op::cuCtxSynchronize, 0);
    ASSERT_FALSE(work::under_way);
  }
  void TearDown() override {
    EXPECT_EQ(exchanged_after_the_end, 0u);
    work::EndWatch();
  }
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

// Two events are named, so which streams are done does not matter; but the program has been told.
TEST_F(ManagedWorkTest, TheTimeBetweenTwoEventsTellsTheirEnd) {
  Post(Op::cuLaunchKernel, kA);
  Post(Op::cuEventRecord, kA, kEvent);
  const uint32_t before = exchanged;
  Wait(Op::cuEventElapsedTime_v2, 0, kEvent, kContext, false);
  EXPECT_EQ(exchanged, before);
  Wait(Op::cuEventElapsedTime_v2, 0, kEvent);
  EXPECT_EQ(exchanged, before + 1);
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

// Waits without messages, of objects that messages name.
class QuietWaitTest : public ManagedWorkTest {
 protected:
  using Wait = work::QuietWait;
  using Subject = Wait::Subject;
  void SetUp() override {
    objects_begin.store(reinterpret_cast<uintptr_t>(objects_));
    const HandleKind kinds[] = {HandleKind::kContext, HandleKind::kStream, HandleKind::kStream,
                                HandleKind::kStream, HandleKind::kEvent};
    for (size_t i = 0; i < std::size(kinds); ++i) objects_[i].kind.store(static_cast<uint8_t>(kinds[i]));
    ManagedWorkTest::SetUp();
  }
  void TearDown() override {
    ManagedWorkTest::TearDown();
    objects_begin.store(uintptr_t{1} << 63);
  }
  Object* const context_ = &objects_[0];
  Object* const a_ = &objects_[1];
  Object* const b_ = &objects_[2];
  Object* const blocking_ = &objects_[3];
  Object* const event_ = &objects_[4];
  void Launch(const Object* stream) {
    MessageMark mark;
    mark.Begin();
    mark.Start(Op::cuLaunchKernel);
    if (stream != context_) work::NameStream(WireOf(stream), WireOf(context_), stream == blocking_);
    mark.Named(WireOf(context_));
    mark.Sent();
  }
  void Record(const Object* stream) {
    Post(Op::cuEventRecord, WireOf(stream), WireOf(event_), WireOf(context_));
  }
  static void EndByWord(Subject subject, const Object* object) {
    Wait wait;
    wait.Begin(subject, object);
    wait.Ended();
  }
  static void KnowTheEnd(Subject subject, const Object* object) {
    Wait wait;
    wait.Begin(subject, object);
    wait.WasOver();
  }

 private:
  Object objects_[5] = {};
};

TEST_F(QuietWaitTest, EndsWhatItsSubjectStandsFor) {
  for (const auto end : {EndByWord, KnowTheEnd}) {
    Launch(a_);
    Launch(b_);
    end(Subject::kStream, a_);
    EXPECT_TRUE(work::under_way);
    end(Subject::kStream, b_);
    EXPECT_FALSE(work::under_way);
    Launch(a_);
    Record(a_);
    Launch(b_);
    end(Subject::kEvent, event_);
    EXPECT_TRUE(work::under_way);
    end(Subject::kStream, b_);
    EXPECT_FALSE(work::under_way);
    Launch(context_);
    Launch(a_);
    end(Subject::kLegacyStream, context_);
    EXPECT_TRUE(work::under_way);
    end(Subject::kContext, context_);
    EXPECT_FALSE(work::under_way);
    Launch(context_);
    Launch(blocking_);
    end(Subject::kLegacyStream, context_);
    EXPECT_FALSE(work::under_way);
    Launch(a_);
    end(Subject::kNothing, nullptr);
    EXPECT_TRUE(work::under_way);
    end(Subject::kContext, context_);
    EXPECT_FALSE(work::under_way);
  }
}

// A word that is looked for says nothing of what is sent meanwhile.
TEST_F(QuietWaitTest, WhatIsSentMeanwhileIsNotDone) {
  for (const Subject subject : {Subject::kStream, Subject::kContext}) {
    const Object* object = subject == Subject::kStream ? a_ : context_;
    Launch(a_);
    Wait wait;
    wait.Begin(subject, object);
    Launch(a_);
    wait.Ended();
    EXPECT_TRUE(work::under_way);
    EndByWord(subject, object);
    EXPECT_FALSE(work::under_way);
  }
}

// Pages are exchanged whenever a word tells an end, also while other work goes on; the same end known again
// needs that only to end the lending of pages.
TEST_F(QuietWaitTest, ExchangesWhatWasLent) {
  Launch(a_);
  Launch(b_);
  uint32_t before = exchanged;
  EndByWord(Subject::kStream, a_);
  EXPECT_EQ(exchanged, before + 1);
  KnowTheEnd(Subject::kStream, a_);
  EXPECT_EQ(exchanged, before + 1);
  EndByWord(Subject::kStream, b_);
  EXPECT_EQ(exchanged, before + 2);
  EndByWord(Subject::kStream, b_);
  KnowTheEnd(Subject::kStream, a_);
  EXPECT_EQ(exchanged, before + 2);
  {
    MessageMark unsent;
    unsent.Begin();
    unsent.Start(Op::cuLaunchKernel);
    KnowTheEnd(Subject::kStream, a_);
    EXPECT_TRUE(work::under_way);
  }
  EXPECT_TRUE(work::under_way);
  before = exchanged;
  KnowTheEnd(Subject::kStream, a_);
  EXPECT_EQ(exchanged, before + 1);
  EXPECT_FALSE(work::under_way);
}

TEST_F(QuietWaitTest, OfAnEarlierWatchEndsNothing) {
  Wait earlier, unwatched;
  earlier.Begin(Subject::kContext, context_);
  work::EndWatch();
  unwatched.Begin(Subject::kContext, context_);
  work::BeginWatch();
  earlier.Ended();
  unwatched.Ended();
  unwatched.WasOver();
  EXPECT_TRUE(work::under_way);
  KnowTheEnd(Subject::kStream, a_);
  EXPECT_FALSE(work::under_way);
}

// A mark waits for its stream and touches no page. A copy between ordinary memories is nothing to wait for,
// but what was written before it arrives before it, as long as anybody can look.
TEST_F(QuietWaitTest, WhatTouchesNoPagesIsNoWork) {
  Post(Op::kMark, WireOf(a_));
  EXPECT_FALSE(work::under_way);
  const auto copy = [this] {
    MessageMark mark;
    mark.Begin();
    mark.Start(Op::kCopyToDevice, true);
    work::NameStream(WireOf(a_), WireOf(context_), false);
    mark.Named(WireOf(context_));
    mark.Sent();
  };
  uint32_t before = given_back;
  copy();
  EXPECT_FALSE(work::under_way);
  EXPECT_EQ(given_back, before);
  Launch(b_);
  before = given_back;
  copy();
  EXPECT_EQ(given_back, before + 1);
  EndByWord(Subject::kStream, b_);
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
  bool watched = true;
  test::YieldUntil([&] {
    watched ? work::EndWatch() : work::BeginWatch();
    watched = !watched;
    return watched && rounds.load() >= kRounds;
  });
  stop.store(true);
  for (std::thread& sender : senders) sender.join();
  // None of their messages is left to be waited for.
  Wait(Op::cuCtxSynchronize, 0);
  EXPECT_FALSE(work::under_way);
}

}  // namespace
}  // namespace causeway::guest
