// SPDX-License-Identifier: Apache-2.0
// What the length of yields tells of other threads, and for how long it is believed.
#include "ivshmem_ring/transport/crowding.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "ivshmem_ring/transport/waiter.h"
#include "tests/unit/one_processor.h"

namespace causeway {
namespace {

using Kind = Crowding::Kind;

TEST(Crowding, ShortYieldsAndFewLongerOnesAreNone) {
  Crowding crowding;
  uint64_t now_us = 1'000'000;
  for (int i = 0; i < 100; ++i) crowding.Yielded(now_us += 25, Crowding::kAloneUs);
  EXPECT_EQ(crowding.At(now_us), Kind::kNone);
  for (int i = 0; i < 10; ++i) crowding.Yielded(now_us += Crowding::kTogetherUs * 2 / 3, 20);
  EXPECT_EQ(crowding.At(now_us), Kind::kNone);
}

TEST(Crowding, ThreeLongerYieldsAreTurnsAndOneSliceIsSlices) {
  Crowding turns;
  turns.Yielded(1'000'000, 20);
  turns.Yielded(1'000'050, 20);
  turns.Yielded(1'000'100, 20);
  EXPECT_EQ(turns.At(1'000'101), Kind::kTurns);
  EXPECT_EQ(turns.At(1'000'100 + Crowding::kFirstUs), Kind::kNone);
  Crowding slices;
  slices.Yielded(1'000'000, Crowding::kSliceUs);
  EXPECT_EQ(slices.At(1'000'001), Kind::kSlices);
  slices.Yielded(1'000'100, 20);  // others may take turns as well
  slices.Yielded(1'000'150, 20);
  slices.Yielded(1'000'200, 20);
  EXPECT_EQ(slices.At(1'000'201), Kind::kSlices);
  EXPECT_EQ(slices.At(1'000'000 + Crowding::kFirstUs), Kind::kNone);
}

TEST(Crowding, FoundAgainSoonItIsBelievedForLonger) {
  Crowding crowding;
  uint64_t now_us = 1'000'000, window_us = Crowding::kFirstUs;
  for (int i = 0; i < 12; ++i) {
    crowding.Yielded(now_us, Crowding::kSliceUs);
    EXPECT_EQ(crowding.At(now_us + window_us - 1), Kind::kSlices) << i;
    EXPECT_EQ(crowding.At(now_us + window_us), Kind::kNone) << i;
    now_us += window_us + 1;
    window_us = std::min(window_us * 2, Crowding::kMostUs);
  }
  now_us += 10 * Crowding::kMostUs;
  crowding.Yielded(now_us, Crowding::kSliceUs);
  EXPECT_EQ(crowding.At(now_us + Crowding::kFirstUs), Kind::kNone);
}

TEST(Crowding, TurnsAreBelievedForSomeMillisecondsAtMost) {
  Crowding crowding;
  uint64_t now_us = 1'000'000;
  for (int i = 0; i < 100; ++i) crowding.Yielded(now_us += 100, 20);
  EXPECT_EQ(crowding.At(now_us + 1), Kind::kTurns);
  EXPECT_EQ(crowding.At(now_us + Crowding::kMostTurnsUs), Kind::kNone);
}

// There each yield lets the thread run that is waited for, so only long ones tell of others, and whoever they are a thread
// that yields gives away more than it gets.
TEST(Crowding, OnOneProcessorTurnsOfThePeerAreNoneAndThoseOfOthersAreSlices) {
  Crowding peer;
  for (int i = 0; i < 100; ++i) peer.YieldedOnOne(1'000'000 + 30 * i, Crowding::kTurnUs);
  EXPECT_EQ(peer.At(1'003'000), Kind::kNone);
  Crowding others;
  for (int i = 1; i <= 3; ++i) others.YieldedOnOne(1'000'000 + 100 * i, Crowding::kTurnUs + 1);
  EXPECT_EQ(others.At(1'000'301), Kind::kSlices);
  Crowding busy;
  busy.YieldedOnOne(1'000'000, Crowding::kSliceUs);
  EXPECT_EQ(busy.At(1'000'001), Kind::kSlices);
}

// The real thing: a thread waits on a processor where another never sleeps.
TEST(Crowding, AWaitingThreadSeesWhoNeverSleepsBesideIt) {
  cpu_set_t mine;
  ASSERT_TRUE(test::UseOneProcessor(&mine));
  std::atomic<bool> end{false};
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::thread busy([&] {  // inherits the processor
    while (!end && std::chrono::steady_clock::now() < until) continue;
  });
  HotWord word{}, waiting{};
  Kind seen = Kind::kNone;
  while (seen == Kind::kNone && std::chrono::steady_clock::now() < until) {
    Waiter waiter(ReplyPolicy(true, 16), &word, &waiting, true);
    while (waiter.waited_us() < 150) waiter.Step(0);
    seen = Crowding::OfProcess().At(NowUs());
  }
  end = true;
  busy.join();
  EXPECT_NE(seen, Kind::kNone);
  EXPECT_EQ(sched_setaffinity(0, sizeof mine, &mine), 0);
}

// In a VM the other side never needs a processor of this kernel's, so a single one is planned for as many are. Last: it holds for the process.
TEST(Crowding, WhereThePeerIsElsewhereASpinCostsItNothing) {
  cpu_set_t mine;
  ASSERT_TRUE(test::UseOneProcessor(&mine));
  PeerIsElsewhere();
  EXPECT_TRUE(PeerRunsBeside());
  std::thread([] {  // in which nothing was seen yet
    while (Crowding::OfProcess().At(NowUs()) != Kind::kNone)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_GT(ReplyPolicy(false).spin_us, 50u);
  })
      .join();
  EXPECT_EQ(sched_setaffinity(0, sizeof mine, &mine), 0);
}

}  // namespace
}  // namespace causeway
