// SPDX-License-Identifier: Apache-2.0
// When work that may touch managed memory counts as in flight (guest_lib/session/submissions.h): a message is begun,
// noted, sent and answered here as PendingPost and ChannelLease do it, and its end is told as Inquiry does it.
#include "guest_lib/session/submissions.h"

#include <gtest/gtest.h>

#include <atomic>
#include <initializer_list>
#include <thread>

#include "guest_lib/session/context.h"
#include "tests/yield_until.h"

namespace causeway::guest {
namespace {

std::atomic<uint32_t> given_back{0}, exchanged{0}, exchanged_after_the_end{0};

void GiveBack() {
  given_back.fetch_add(1);
}
void Exchange(bool) {
  exchanged.fetch_add(1);
  if (!work::under_way) exchanged_after_the_end.fetch_add(1);
}
void Restore() {}

using Kind = Subject::Kind;

// Objects as handles.h keeps them, in an array of their own.
Object objects[9] = {};
Object* const kContext = &objects[1];
Object* const kOtherContext = &objects[2];
Object* const kA = &objects[3];
Object* const kB = &objects[4];
Object* const kBlocking = &objects[5];
Object* const kOthers = &objects[6];   // a stream of the other context
Object* const kSeveral = &objects[7];  // stands for several streams
Object* const kEvent = &objects[8];
Context contexts[2];

class ManagedWorkTest : public testing::Test {
 protected:
  void SetUp() override {
    objects_begin.store(reinterpret_cast<uintptr_t>(objects));
    for (Object* context : {kContext, kOtherContext}) {
      context->kind = static_cast<uint8_t>(HandleKind::kContext);
      context->detail = &contexts[context - kContext];
    }
    for (Object* stream : {kA, kB, kBlocking, kOthers}) {
      stream->kind = static_cast<uint8_t>(HandleKind::kStream);
      stream->context = stream == kOthers ? kOtherContext : kContext;
      stream->flags = stream == kBlocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
    }
    kEvent->kind = static_cast<uint8_t>(HandleKind::kEvent);
    work::managed_pages = {GiveBack, Exchange, Restore};
    work::BeginWatch();
    EXPECT_TRUE(work::under_way);
    Wait(Op::cuCtxSynchronize, nullptr);
    ASSERT_FALSE(work::under_way);
  }
  void TearDown() override {
    EXPECT_EQ(exchanged_after_the_end, 0u);
    work::EndWatch();
    objects_begin.store(uintptr_t{1} << 63);
  }
  static Submission Named(Object* stream, Object* event) {
    return {.stream = stream != kSeveral ? stream : nullptr,
            .event = event,
            .several_streams = stream == kSeveral};
  }
  static void Begin(MessageInFlight& message, Op op, Object* stream, Object* event = nullptr,
                    Object* context = kContext) {
    message.Begin(op);
    submissions.NoteCall(message, op, Named(stream, event), WireOf(context));
  }
  static void Post(Op op, Object* stream, Object* event = nullptr, Object* context = kContext) {
    MessageInFlight message;
    message.Begin(op);
    submissions.NotePost(message, op, Named(stream, event), WireOf(context), posts.fetch_add(1));
    message.Sent();
  }
  static void Answer(MessageInFlight& message, bool success) {
    message.Sent();
    message.Answered(success);
    message.Finish();
  }
  // What the call waits for: a stream, an event, or its context.
  static Subject SubjectOf(Op op, Object* stream, Object* event, Object* context) {
    switch (op) {
      case Op::cuCtxSynchronize:
        return {Kind::kContext, context};
      case Op::cuStreamSynchronize:
      case Op::cuStreamQuery:
        return stream != nullptr ? Subject{Kind::kStream, stream} : Subject{Kind::kLegacyStream, context};
      case Op::cuEventSynchronize:
      case Op::cuEventQuery:
        return {Kind::kEvent, event};
      default:
        return {};
    }
  }
  static void Wait(Op op, Object* stream, Object* event = nullptr, Object* context = kContext,
                   bool success = true) {
    const Stamp stamp = submissions.Now(posts);
    MessageInFlight message;
    Begin(message, op, stream, event, context);
    Answer(message, success);
    if (success) submissions.NoteDone(SubjectOf(op, stream, event, context), stamp);
  }
  static std::atomic<uint64_t> posts;
};
std::atomic<uint64_t> ManagedWorkTest::posts{0};

TEST_F(ManagedWorkTest, EachStreamIsWaitedForAlone) {
  Post(Op::cuLaunchKernel, kA);
  Post(Op::cuLaunchKernel, kB);
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamSynchronize, nullptr);  // the legacy stream's waits mean no others
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamQuery, kB, nullptr, kContext, false);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamQuery, kB);
  EXPECT_FALSE(work::under_way);
}

TEST_F(ManagedWorkTest, ACopyWaitsForItsStreamOnly) {
  Post(Op::cuLaunchKernel, kA);
  Wait(Op::cuMemcpyDtoH_v2, nullptr);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuMemcpyDtoH_v2, kA);
  EXPECT_FALSE(work::under_way);
  Wait(Op::cuMemcpyHtoD_v2, nullptr);
  EXPECT_FALSE(work::under_way);
}

TEST_F(ManagedWorkTest, AContextIsWaitedForAsAWhole) {
  Post(Op::cuLaunchKernel, kA);
  Post(Op::cuLaunchKernel, nullptr);
  Post(Op::cuLaunchKernel, kOthers);
  Wait(Op::cuCtxSynchronize, nullptr);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuCtxSynchronize, nullptr, nullptr, kOtherContext);
  EXPECT_FALSE(work::under_way);
}

// Whatever context is current where work is sent to a stream, it is waited for with the stream's own.
TEST_F(ManagedWorkTest, AStreamBelongsToItsContext) {
  Post(Op::cuMemcpyHtoDAsync_v2, kOthers, nullptr, kContext);
  Wait(Op::cuCtxSynchronize, nullptr, nullptr, kContext);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuCtxSynchronize, nullptr, nullptr, kOtherContext);
  EXPECT_FALSE(work::under_way);
}

TEST_F(ManagedWorkTest, AnEventStandsForWhatCameBeforeItOnItsStream) {
  Post(Op::cuLaunchKernel, kA);
  Post(Op::cuEventRecord, kA, kEvent);
  Post(Op::cuStreamWaitEvent, kB, kEvent);  // does not record it
  Wait(Op::cuStreamSynchronize, kB);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuEventSynchronize, nullptr, kEvent);
  EXPECT_FALSE(work::under_way);
  Post(Op::cuEventRecord, kA, kEvent);
  Post(Op::cuLaunchKernel, kA);
  Wait(Op::cuEventQuery, nullptr, kEvent);
  EXPECT_TRUE(work::under_way);
  Post(Op::cuEventRecord, kB, kEvent);  // says no more of A
  Wait(Op::cuEventQuery, nullptr, kEvent);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_FALSE(work::under_way);
}

// Two events are named, so which streams are done does not matter; but the program has been told.
TEST_F(ManagedWorkTest, TheTimeBetweenTwoEventsTellsTheirEnd) {
  Post(Op::cuLaunchKernel, kA);
  Post(Op::cuEventRecord, kA, kEvent);
  const uint32_t before = exchanged;
  Wait(Op::cuEventElapsedTime_v2, nullptr, kEvent, kContext, false);
  EXPECT_EQ(exchanged, before);
  Wait(Op::cuEventElapsedTime_v2, nullptr, kEvent);
  EXPECT_EQ(exchanged, before + 1);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_FALSE(work::under_way);
}

// What freeing waits for depends on the memory: nothing, if it is a pool's.
TEST_F(ManagedWorkTest, FreeingMemoryEndsNoWork) {
  Post(Op::cuLaunchKernel, kA);
  const uint32_t before = exchanged;
  Wait(Op::cuMemFree_v2, nullptr);
  EXPECT_EQ(exchanged, before + 1);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_FALSE(work::under_way);
}

TEST_F(ManagedWorkTest, BlockingStreamsAndTheLegacyStreamWaitForEachOther) {
  Post(Op::cuMemsetD8Async, nullptr);
  Post(Op::cuLaunchKernel, kBlocking);
  Wait(Op::cuStreamSynchronize, kBlocking);
  EXPECT_FALSE(work::under_way);
  Post(Op::cuLaunchKernel, kBlocking);
  Post(Op::cuMemsetD8Async, nullptr);
  Wait(Op::cuStreamSynchronize, kBlocking);
  EXPECT_TRUE(work::under_way);
  Post(Op::cuLaunchKernel, kBlocking);
  Wait(Op::cuMemcpyDtoH_v2, nullptr);
  EXPECT_FALSE(work::under_way);
  Post(Op::cuMemsetD8Async, nullptr);
  Post(Op::cuLaunchKernel, kA);
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuCtxSynchronize, nullptr);
  EXPECT_FALSE(work::under_way);
}

TEST_F(ManagedWorkTest, LoadingCodeLeavesNoWork) {
  Wait(Op::cuModuleLoadDataEx, nullptr);
  EXPECT_FALSE(work::under_way);
  Post(Op::cuLaunchKernel, kA);
  Wait(Op::cuModuleGetFunction, nullptr);
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
  Wait(Op::cuEventSynchronize, nullptr, kEvent);
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_FALSE(work::under_way);
}

// Another thread's message goes out while this one waits: before or after, nobody knows.
TEST_F(ManagedWorkTest, WhatIsSentMeanwhileIsNotDone) {
  for (const Op op : {Op::cuStreamSynchronize, Op::cuCtxSynchronize, Op::cuMemcpyDtoH_v2}) {
    Post(Op::cuLaunchKernel, kA);
    const Stamp stamp = submissions.Now(posts);
    MessageInFlight wait;
    Begin(wait, op, kA);
    Post(Op::cuLaunchKernel, kA);
    Answer(wait, true);
    submissions.NoteDone(SubjectOf(op, kA, nullptr, kContext), stamp);
    EXPECT_TRUE(work::under_way);
    MessageInFlight begun;
    Begin(begun, Op::cuLaunchKernel, kA);
    Wait(Op::cuStreamSynchronize, kA);
    EXPECT_TRUE(work::under_way);
    begun.Sent();
    Wait(Op::cuStreamSynchronize, kA);
    EXPECT_FALSE(work::under_way);
  }
}

// They may belong to several contexts.
TEST_F(ManagedWorkTest, WhatWentToSeveralStreamsLastsAsLongAsTheWatch) {
  Post(Op::cuLaunchCooperativeKernelMultiDevice, kSeveral);
  Wait(Op::cuStreamSynchronize, kA);
  Wait(Op::cuStreamSynchronize, nullptr);
  Wait(Op::cuCtxSynchronize, nullptr);
  EXPECT_TRUE(work::under_way);
}

TEST_F(ManagedWorkTest, AMessageThatWasNeverSentIsNoWork) {
  {
    MessageInFlight unsent;
    unsent.Begin(Op::cuLaunchKernel);
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
  Wait(Op::cuEventSynchronize, nullptr, kEvent);  // recorded before this watch
  EXPECT_TRUE(work::under_way);
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_FALSE(work::under_way);
}

TEST_F(ManagedWorkTest, AMessageCountsInTheWatchInWhichItWasBegun) {
  {
    MessageInFlight unsent, launch, wait, unwatched;
    unsent.Begin(Op::cuLaunchKernel);
    Begin(launch, Op::cuLaunchKernel, kA);
    const Stamp stamp = submissions.Now(posts);
    Begin(wait, Op::cuStreamSynchronize, kA);
    work::EndWatch();
    Begin(unwatched, Op::cuLaunchKernel, kA);
    work::BeginWatch();
    launch.Sent();
    unwatched.Sent();
    Post(Op::cuLaunchKernel, kA);
    Answer(wait, true);
    submissions.NoteDone({Kind::kStream, kA}, stamp);
    EXPECT_TRUE(work::under_way);
  }
  Wait(Op::cuStreamSynchronize, kA);
  EXPECT_FALSE(work::under_way);
}

// Ends that are seen without a message.
class QuietWaitTest : public ManagedWorkTest {
 protected:
  static void Launch(Object* stream) { Post(Op::cuLaunchKernel, stream != kContext ? stream : nullptr); }
  static void EndByWord(Kind kind, Object* object) {
    submissions.NoteDone({kind, object}, submissions.Now(posts), true);
  }
  static void KnowTheEnd(Kind kind, Object* object) {
    submissions.NoteDoneAgain({kind, object}, submissions.Now(posts));
  }
};

TEST_F(QuietWaitTest, EndsWhatItsSubjectStandsFor) {
  for (const auto end : {EndByWord, KnowTheEnd}) {
    Launch(kA);
    Launch(kB);
    end(Kind::kStream, kA);
    EXPECT_TRUE(work::under_way);
    end(Kind::kStream, kB);
    EXPECT_FALSE(work::under_way);
    Launch(kA);
    Post(Op::cuEventRecord, kA, kEvent);
    Launch(kB);
    end(Kind::kEvent, kEvent);
    EXPECT_TRUE(work::under_way);
    end(Kind::kStream, kB);
    EXPECT_FALSE(work::under_way);
    Launch(kContext);
    Launch(kA);
    end(Kind::kLegacyStream, kContext);
    EXPECT_TRUE(work::under_way);
    end(Kind::kContext, kContext);
    EXPECT_FALSE(work::under_way);
    Launch(kContext);
    Launch(kBlocking);
    end(Kind::kLegacyStream, kContext);
    EXPECT_FALSE(work::under_way);
    Launch(kA);
    submissions.NoteDone({}, submissions.Now(posts), true);
    EXPECT_TRUE(work::under_way);
    end(Kind::kContext, kContext);
    EXPECT_FALSE(work::under_way);
  }
}

// A word that is looked for says nothing of what is sent meanwhile.
TEST_F(QuietWaitTest, WhatIsSentMeanwhileIsNotDone) {
  for (const Kind kind : {Kind::kStream, Kind::kContext}) {
    Object* object = kind == Kind::kStream ? kA : kContext;
    Launch(kA);
    const Stamp stamp = submissions.Now(posts);
    Launch(kA);
    submissions.NoteDone({kind, object}, stamp, true);
    EXPECT_TRUE(work::under_way);
    EndByWord(kind, object);
    EXPECT_FALSE(work::under_way);
  }
}

// Pages are exchanged whenever a word tells an end, also while other work goes on; the same end known again
// needs that only to end the lending of pages.
TEST_F(QuietWaitTest, ExchangesWhatWasLent) {
  Launch(kA);
  Launch(kB);
  uint32_t before = exchanged;
  EndByWord(Kind::kStream, kA);
  EXPECT_EQ(exchanged, before + 1);
  KnowTheEnd(Kind::kStream, kA);
  EXPECT_EQ(exchanged, before + 1);
  EndByWord(Kind::kStream, kB);
  EXPECT_EQ(exchanged, before + 2);
  EndByWord(Kind::kStream, kB);
  KnowTheEnd(Kind::kStream, kA);
  EXPECT_EQ(exchanged, before + 2);
  {
    MessageInFlight unsent;
    unsent.Begin(Op::cuLaunchKernel);
    KnowTheEnd(Kind::kStream, kA);
    EXPECT_TRUE(work::under_way);
  }
  EXPECT_TRUE(work::under_way);
  before = exchanged;
  KnowTheEnd(Kind::kStream, kA);
  EXPECT_EQ(exchanged, before + 1);
  EXPECT_FALSE(work::under_way);
}

TEST_F(QuietWaitTest, OfAnEarlierWatchEndsNothing) {
  const Subject context{Kind::kContext, kContext};
  const Stamp earlier = submissions.Now(posts);
  work::EndWatch();
  const Stamp unwatched = submissions.Now(posts);
  work::BeginWatch();
  submissions.NoteDone(context, earlier, true);
  submissions.NoteDone(context, unwatched, true);
  submissions.NoteDoneAgain(context, unwatched);
  EXPECT_TRUE(work::under_way);
  KnowTheEnd(Kind::kStream, kA);
  EXPECT_FALSE(work::under_way);
}

// A mark waits for its stream and touches no page. A copy between ordinary memories is nothing to wait for,
// but what was written before it arrives before it, as long as anybody can look.
TEST_F(QuietWaitTest, WhatTouchesNoPagesIsNoWork) {
  Post(Op::kMark, kA);
  EXPECT_FALSE(work::under_way);
  const auto copy = [] {
    MessageInFlight message;
    message.Begin(Op::kCopyToDevice, true);
    submissions.NotePost(message, Op::kCopyToDevice, Named(kA, nullptr), WireOf(kContext),
                         posts.fetch_add(1));
    message.Sent();
  };
  uint32_t before = given_back;
  copy();
  EXPECT_FALSE(work::under_way);
  EXPECT_EQ(given_back, before);
  Launch(kB);
  before = given_back;
  copy();
  EXPECT_EQ(given_back, before + 1);
  EndByWord(Kind::kStream, kB);
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
        if (i % 3 == 0) Wait(Op::cuCtxSynchronize, nullptr);
        MessageInFlight unsent;
        unsent.Begin(Op::cuLaunchKernel);
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
  // Of two threads that see the same end one exchanges pages when the other has said that it is the end.
  exchanged_after_the_end = 0;
  // None of their messages is left to be waited for.
  Wait(Op::cuCtxSynchronize, nullptr);
  EXPECT_FALSE(work::under_way);
}

}  // namespace
}  // namespace causeway::guest
