// SPDX-License-Identifier: Apache-2.0
// When a sleeper looks, over waits of known length and sleeps that last 55 us too long.
#include "guest_lib/process/look_times.h"

#include <gtest/gtest.h>

namespace causeway::guest {
namespace {

constexpr uint32_t kKind = 7;
constexpr uint64_t kLateUs = 55;

struct Wait {
  bool came = false;  // before the sleeper's patience was at its end
  uint32_t sleeps = 0;
  uint64_t late_us = 0;
};

// As Mark::ComesToSleeper does it.
Wait SleepFor(LookTimes& times, uint64_t end_us, uint32_t kind = kKind) {
  const uint64_t first_us = times.First(kind), patience_us = times.Patience(kind);
  Wait wait;
  uint64_t now_us = 0;
  for (; now_us < end_us; ++wait.sleeps) {
    if (now_us >= patience_us) return wait;
    now_us += (now_us < first_us ? first_us - now_us : LookTimes::Nap(now_us, first_us)) + kLateUs;
  }
  wait.came = true;
  wait.late_us = now_us - end_us;
  wait.sleeps == 1 && first_us != 0 ? times.CameBefore(kind) : times.Came(kind, now_us);
  return wait;
}

// A program's wait; who gives up is woken.
Wait WaitFor(LookTimes& times, uint64_t end_us) {
  Wait wait;
  if (times.MaySleep(kKind)) wait = SleepFor(times, end_us);
  if (!wait.came) times.Woken(kKind, end_us + 20);
  return wait;
}

TEST(LookTimes, RegularWaitsAreMetByOneLook) {
  for (const uint64_t length_us : {100, 300, 1250, 10'000, 40'000}) {
    LookTimes times;
    constexpr uint32_t kWaits = 200;
    uint32_t sleeps = 0;
    uint64_t late_us = 0;
    for (uint32_t i = 0; i < 3; ++i) WaitFor(times, length_us);
    for (uint32_t i = 0; i < kWaits; ++i) {
      const Wait wait = WaitFor(times, length_us + i * 37 % 20);
      EXPECT_TRUE(wait.came) << length_us;
      sleeps += wait.sleeps;
      late_us += wait.late_us;
    }
    EXPECT_LT(sleeps, kWaits * 3 / 2) << length_us;
    EXPECT_LT(late_us / kWaits, 50 + length_us / 64) << length_us;
  }
}

TEST(LookTimes, WhatBecomesShorterIsNotMissedForLong) {
  LookTimes times;
  for (int i = 0; i < 10; ++i) WaitFor(times, 10'000);
  uint64_t late_us = 0;
  for (int i = 0; i < 30; ++i) late_us += WaitFor(times, 500).late_us;
  EXPECT_LT(late_us, 12u * 10'000);
  EXPECT_LT(WaitFor(times, 500).late_us, 150u);
}

// Nobody else is asked because of a wait that is longer or shorter than those before.
TEST(LookTimes, WhatDiffersIsNappedFor) {
  LookTimes times;
  uint32_t sleeps = 0, waits = 0;
  for (int round = 0; round < 50; ++round) {
    for (const uint64_t length_us : {1250, 2500, 1250, 400, 1400, 1250, 100}) {
      const Wait wait = WaitFor(times, length_us);
      EXPECT_TRUE(wait.came) << length_us;
      sleeps += wait.sleeps;
      ++waits;
    }
  }
  EXPECT_LT(sleeps / waits, 10u);
}

TEST(LookTimes, WhatIsLongAndDiffersIsLeftToOthers) {
  LookTimes times;
  EXPECT_TRUE(times.MaySleep(kKind));
  EXPECT_FALSE(SleepFor(times, 10'000).came);  // of which nothing is known
  times.Woken(kKind, 10'000);
  EXPECT_TRUE(times.MaySleep(kKind));
  EXPECT_GT(times.First(kKind), 5'000u);
  EXPECT_FALSE(SleepFor(times, 20'000).came);
  times.Woken(kKind, 20'000);
  EXPECT_FALSE(times.MaySleep(kKind));
  times.Woken(kKind, 20'100);
  EXPECT_TRUE(times.MaySleep(kKind));
  EXPECT_GT(times.First(kKind), 19'000u);
  times.Woken(kKind, 0);
  EXPECT_TRUE(times.MaySleep(kKind));  // short enough for naps
  EXPECT_EQ(times.First(kKind), 0u);
  for (int i = 0; i < 2; ++i) times.Woken(kKind, 100'000);
  EXPECT_FALSE(times.MaySleep(kKind));
}

TEST(LookTimes, KindsAreApart) {
  LookTimes times;
  for (uint32_t kind = 1; kind < 1000; ++kind) {  // more than there is room for
    times.Woken(kind, 2000 + kind);
    EXPECT_GT(times.First(kind), kind);
  }
  EXPECT_EQ(times.First(1), 0u);
}

}  // namespace
}  // namespace causeway::guest
