// SPDX-License-Identifier: Apache-2.0
// Whether a daemon counts as stopped: by one that beats, one that is asked, one that is silent, and with threads that look side by side.
#include "guest_lib/connection/beat_watch.h"

#include <gtest/gtest.h>

namespace causeway::guest {
namespace {

struct BeatWatchTest : testing::Test {
  BeatWatch watch;
  uint64_t now = 100'000, beat = 1;
  int asked = 0;

  bool Missing(bool asks) {
    return watch.IsMissing([this] { return now; }, [this] { return beat; },
                           [&] { return asks && ++asked != 0; });
  }
};

TEST_F(BeatWatchTest, DaemonThatBeatsByItselfAndStops) {
  for (int i = 0; i < 60; ++i, now += 1000, ++beat) EXPECT_FALSE(Missing(false));
  now += BeatWatch::kTimeoutMs - 1000;
  --beat;  // the last that was seen
  EXPECT_FALSE(Missing(false));
  now += 1;
  EXPECT_TRUE(Missing(false));
  ++beat;
  EXPECT_FALSE(Missing(false));
}

TEST_F(BeatWatchTest, DaemonThatIsAsked) {
  EXPECT_FALSE(Missing(true));
  now += 3'600'000;  // nobody has waited for an hour
  EXPECT_FALSE(Missing(true));
  EXPECT_EQ(asked, 1);
  for (uint64_t waited = 0; waited < BeatWatch::kTimeoutMs; waited += 500, now += 500)
    EXPECT_FALSE(Missing(true)) << waited;
  EXPECT_LE(asked, 16);
  now += 1;
  EXPECT_TRUE(Missing(true));
}

// A second thread looks while the first is in its call that asks: it sees the answer, at a later time.
TEST_F(BeatWatchTest, AnswerThatAnotherThreadSees) {
  EXPECT_FALSE(Missing(true));
  for (int round = 0; round < 10; ++round) {
    now += 1500;
    const bool missing = watch.IsMissing([this] { return now; }, [this] { return beat; },
                                         [this] {
                                           ++beat;
                                           now += 5;
                                           EXPECT_FALSE(Missing(true));
                                           return true;
                                         });
    EXPECT_FALSE(missing) << round;
    now += 1;
    EXPECT_FALSE(Missing(true));
  }
}

// A thread is interrupted between its looks at the clock and at the beat, for longer than the limit. The daemon beats meanwhile.
TEST_F(BeatWatchTest, ThreadThatIsInterruptedBetweenItsLooks) {
  EXPECT_FALSE(Missing(false));
  const auto interrupted = [this](uint64_t seen) {
    now += 2 * BeatWatch::kTimeoutMs;
    ++beat;
    return seen;
  };
  EXPECT_FALSE(watch.IsMissing([&] { return interrupted(now); }, [&] { return interrupted(beat); },
                               [] { return false; }));
}

using Verdict = HostSilence::Verdict;

struct HostSilenceTest : testing::Test {
  HostSilence silence;
  uint64_t now = 100'000, beat = 1;
  bool stopped = false, asks = false;
  int asked = 0;

  Verdict Look() {
    return silence.Look([this] { return now; }, [this] { return beat; },
                        [this] { return asks && ++asked != 0; }, stopped);
  }
  // Every 100 ms for so long; the first verdict that is not kWait.
  Verdict LookFor(uint64_t ms) {
    for (const uint64_t end = now + ms; now < end; now += 100) {
      if (const Verdict verdict = Look(); verdict != Verdict::kWait) return verdict;
    }
    return Verdict::kWait;
  }
};

TEST_F(HostSilenceTest, ADaemonThatBeatsIsWaitedFor) {
  for (int second = 0; second < 90; ++second, ++beat) EXPECT_EQ(LookFor(1000), Verdict::kWait);
}

TEST_F(HostSilenceTest, ASilentDaemonIsNamedOnceAndGivenUp) {
  EXPECT_EQ(LookFor(HostSilence::kSayAfterMs), Verdict::kWait);
  EXPECT_EQ(Look(), Verdict::kSay);
  EXPECT_EQ(LookFor(BeatWatch::kTimeoutMs - HostSilence::kSayAfterMs), Verdict::kWait);
  EXPECT_EQ(LookFor(BeatWatch::kTimeoutMs), Verdict::kEnd);
}

TEST_F(HostSilenceTest, OneThatHasSaidThatItStopsIsGivenUpSooner) {
  stopped = true;
  EXPECT_EQ(LookFor(HostSilence::kSayAfterMs), Verdict::kWait) << "another one may begin";
  EXPECT_EQ(Look(), Verdict::kEnd);
}

TEST_F(HostSilenceTest, TheNextDaemonIsWaitedFor) {
  EXPECT_EQ(LookFor(10'000), Verdict::kSay);
  ++beat;
  EXPECT_EQ(LookFor(10'000), Verdict::kWait) << "it is said once";
}

TEST_F(HostSilenceTest, OneThatBeatsWhenItIsAskedIsAskedInTime) {
  asks = true;
  for (int i = 0; i < 600; ++i, now += 100) {
    const int before = asked;
    EXPECT_EQ(Look(), Verdict::kWait);
    if (asked != before) ++beat;
  }
  EXPECT_GT(asked, 10);
}

}  // namespace
}  // namespace causeway::guest
