// SPDX-License-Identifier: Apache-2.0
// The waiting protocol: sleeps are bounded, the flag is right, and a wake-up that meets the moment of falling
// asleep is not lost.
#include "ivshmem_ring/transport/waiter.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/unit/one_processor.h"
#include "tests/unit/ring_memory.h"
#include "tests/yield_until.h"

namespace causeway {
namespace {

using Clock = std::chrono::steady_clock;

double Milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

struct Words {
  HotWord ping{}, pong{}, ping_waiting{}, pong_waiting{};
};

TEST(Waiter, NeverSleepsLongerThanItsBound) {
  Words words;
  for (const bool futex : {true, false}) {
    const WaitPolicy policy{
        .spin_us = 1, .yield_us = 1, .first_sleep_us = 20, .max_sleep_us = 1000, .max_futex_sleep_us = 2000};
    Waiter waiter(policy, &words.ping, &words.ping_waiting, futex);
    const auto began = Clock::now();
    int steps = 0, checks = 0;
    while (Milliseconds(Clock::now() - began) < 200) {
      waiter.Step(0);
      ++steps;
      if (waiter.TimeToCheckPeer()) ++checks;
    }
    // Steps in 200 ms: at least one in 4 ms even on a busy machine, far fewer than a spinning loop makes.
    EXPECT_GE(steps, 50) << futex;
    EXPECT_LE(steps, 20'000) << futex;
    EXPECT_GE(checks, 5) << futex;
    EXPECT_LE(checks, 20) << futex;
  }
}

TEST(Waiter, TheFlagIsUpWhileAsleepAndDownAfterwards) {
  Words words;
  const WaitPolicy policy{.spin_us = 0, .yield_us = 0, .first_sleep_us = 1000, .max_sleep_us = 1000};
  std::atomic<bool> done{false};
  std::thread sleeper([&] {
    Waiter waiter(policy, &words.ping, &words.ping_waiting, true);
    while (LoadAcquire(words.ping) == 0) waiter.Step(0);
    done = true;
  });
  test::YieldUntil([&] { return LoadAcquire(words.ping_waiting) == 1; });
  StoreRelease(words.ping, 1);
  Wake(words.ping, words.ping_waiting, true);
  sleeper.join();
  EXPECT_EQ(LoadAcquire(words.ping_waiting), 0u);
}

TEST(Waiter, AWordThatChangedAlreadyEndsTheSleepAtOnce) {
  Words words;
  StoreRelease(words.ping, 64);
  const WaitPolicy policy{.spin_us = 0,
                          .yield_us = 0,
                          .first_sleep_us = 60'000'000,
                          .max_sleep_us = 60'000'000,
                          .max_futex_sleep_us = 60'000'000};
  Waiter waiter(policy, &words.ping, &words.ping_waiting, true);
  const auto began = Clock::now();
  waiter.Step(0);  // the value seen before the peer published
  EXPECT_LT(Milliseconds(Clock::now() - began), 30'000);
}

// Long before it is expected, and much of the time that is expected slept through.
TEST(Waiter, AnExpectedWaitIsSleptThroughAndEndsWhenTheWordComes) {
  Words words;
  std::thread peer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    StoreRelease(words.ping, 1);
    Wake(words.ping, words.ping_waiting, true);
  });
  const WaitPolicy policy{.spin_us = 60'000'000, .max_futex_sleep_us = 60'000'000};
  Waiter waiter(policy, &words.ping, &words.ping_waiting, true, 60'000'000);
  const auto began = Clock::now();
  uint64_t steps = 0;
  for (; LoadAcquire(words.ping) == 0; ++steps) waiter.Step(0);
  EXPECT_LT(Milliseconds(Clock::now() - began), 30'000);
  EXPECT_LE(steps, 1000u);  // spinning takes a million
  EXPECT_GE(waiter.waited_us(), 50'000u);
  peer.join();
}

TEST(Waiter, WhatLastsLongerThanExpectedIsWaitedFor) {
  Words words;
  std::thread peer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    StoreRelease(words.ping, 1);
    Wake(words.ping, words.ping_waiting, true);
  });
  {
    const WaitPolicy policy{.spin_us = 10, .yield_us = 10};
    Waiter waiter(policy, &words.ping, &words.ping_waiting, true, 1000);
    while (LoadAcquire(words.ping) == 0) waiter.Step(0);
  }
  EXPECT_EQ(LoadAcquire(words.ping_waiting), 0u);
  peer.join();
}

TEST(WaitPolicy, OnOneProcessorNobodySpins) {
  const auto policies = [](uint32_t processors) {
    return std::vector{ReplyPolicy(true, processors), ReplyPolicy(false, processors),
                       BlockingPolicy(processors),    IdlePolicy(processors),
                       DevicePolicy(processors),      OrderPolicy(processors)};
  };
  for (const WaitPolicy& policy : policies(1)) EXPECT_EQ(policy.spin_us, 0u);
  for (const WaitPolicy& policy : policies(2)) EXPECT_LE(policy.spin_us, 2u);
  EXPECT_GE(ReplyPolicy(true, 16).spin_us, 50u);
  EXPECT_GE(IdlePolicy(16).spin_us, 50u);
}

// Beside threads that do not sleep each yield would cost a time slice.
TEST(WaitPolicy, InACrowdTheHostSleepsAndNobodyYields) {
  for (const WaitPolicy& policy : {IdlePolicy(kCrowded), BlockingPolicy(kCrowded)})
    EXPECT_EQ(policy.spin_us, 0u);
  for (const WaitPolicy& policy : {ReplyPolicy(true, kCrowded), ReplyPolicy(false, kCrowded),
                                   IdlePolicy(kCrowded), OrderPolicy(kCrowded), DevicePolicy(kCrowded)}) {
    EXPECT_EQ(policy.yield_us, 0u);
    EXPECT_TRUE(policy.spin_us < policy.ask_us || policy.ask_us == 0);
  }
  EXPECT_GT(ReplyPolicy(true, kCrowded).spin_us, 0u);
}

// A sleep that is ended late comes after sleeps by a timer.
TEST(Waiter, LooksByATimerBeforeASleepThatIsEndedLate) {
  Words words;
  const WaitPolicy policy{.spin_us = 0, .max_futex_sleep_us = 60'000'000, .timed_us = 2'000};
  Waiter waiter(policy, &words.ping, &words.ping_waiting, true);
  waiter.Step(0);  // the first reads the clock
  int looks = 0;
  while (waiter.waited_us() < policy.timed_us) {
    waiter.Step(0);
    ++looks;
    EXPECT_EQ(LoadAcquire(words.ping_waiting), 0u);
  }
  EXPECT_LE(looks, 20);  // ever longer ones
  waiter.Step(0);
  EXPECT_EQ(LoadAcquire(words.ping_waiting), 1u);  // and now it is announced
}

TEST(WaitPolicy, CountsTheProcessorsThatTheThreadMayUse) {
  const uint32_t before = UsableProcessors();
  EXPECT_GE(before, 1u);
  std::thread([] {
    cpu_set_t mine;
    ASSERT_TRUE(test::UseOneProcessor(&mine));
    EXPECT_EQ(UsableProcessors(), 1u);
  }).join();
  EXPECT_EQ(UsableProcessors(), before);
}

TEST(WaitHistory, ExpectsTheShorterOfTheLastTwoOfAKind) {
  WaitHistory history;
  EXPECT_EQ(history.Expected(5), 0u);
  history.Note(5, 300);
  EXPECT_EQ(history.Expected(5), 0u);
  history.Note(5, 200);
  EXPECT_EQ(history.Expected(5), 200u);
  EXPECT_EQ(history.Expected(6), 0u);
  history.Note(5, 1);
  EXPECT_EQ(history.Expected(5), 1u);
  for (uint32_t kind = 1; kind < 1000; ++kind) {  // more than there is room for
    history.Note(kind, kind);
    history.Note(kind, kind);
    EXPECT_EQ(history.Expected(kind), kind);
  }
  EXPECT_EQ(history.Expected(5), 0u);
}

TEST(SpinBudget, FollowsWhatPays) {
  SpinBudget budget(300);
  EXPECT_EQ(budget.us(), 300u);
  budget.Note(5);
  budget.Note(300);
  EXPECT_EQ(budget.us(), 300u);
  for (int i = 0; i < 10; ++i) budget.Note(10'000);
  const uint32_t least = budget.us();
  EXPECT_LE(least, 10u);
  EXPECT_GE(least, 1u);
  budget.Note(200);  // a longer spin would have met it
  EXPECT_EQ(budget.us(), 2 * least);
  for (int i = 0; i < 10; ++i) budget.Note(300);
  EXPECT_EQ(budget.us(), 300u);
  SpinBudget small(2);
  for (int i = 0; i < 10; ++i) small.Note(10'000);
  EXPECT_LE(small.us(), 2u);
}

TEST(GatherPace, GathersForLongerWhereManyComeAndRarelyWhereFewDo) {
  using End = GatherPace::End;
  GatherPace pace;
  uint64_t taken = 1;
  const auto next = [&](End end, uint64_t records) {
    pace.Note(end, records != 0);
    return pace.Begin(taken += records);
  };
  EXPECT_EQ(pace.Begin(taken), 250u);
  EXPECT_EQ(next(End::kTime, 4), 500u);
  EXPECT_EQ(next(End::kTime, 100), 1000u);
  EXPECT_EQ(next(End::kTime, 100), 1000u);
  EXPECT_EQ(next(End::kFull, 100), 1000u) << "nobody waits";
  EXPECT_EQ(next(End::kHurried, 100), 250u) << "somebody waits";
  EXPECT_EQ(next(End::kNoSleep, 1), 250u) << "nobody slept";
  for (uint32_t left_out = 1; left_out <= 64; left_out *= 2) {  // two records and a wait, over and over
    EXPECT_EQ(next(End::kHurried, 2), 0u) << left_out;
    for (uint32_t i = 1; i < left_out; ++i) EXPECT_EQ(pace.Begin(taken += 2), 0u) << left_out;
    EXPECT_EQ(pace.Begin(taken += 2), 250u) << left_out;
  }
  EXPECT_EQ(next(End::kTime, 50), 500u);
  EXPECT_EQ(next(End::kTime, 0), 0u) << "in vain, also when many come later";
  EXPECT_EQ(pace.Begin(taken += 400), 250u) << "one that paid makes it tried again soon";
}

TEST(SpinBudget, ExpectsWhatKeepsComingInOneStep) {
  SpinBudget budget(300);
  EXPECT_EQ(budget.expected_us(), 0u);
  budget.Note(800);
  EXPECT_EQ(budget.expected_us(), 0u);
  budget.Note(1);  // of a burst: nothing to do with the step
  budget.Note(900);
  EXPECT_EQ(budget.expected_us(), 800u);
  budget.Note(5000);
  EXPECT_EQ(budget.expected_us(), 0u);
  budget.Note(5100);
  EXPECT_EQ(budget.expected_us(), 5000u);
  for (int i = 0; i < 2; ++i) budget.Note(1'000'000);  // its end cannot be met
  EXPECT_EQ(budget.expected_us(), 0u);
  SpinBudget small(2);  // of few processors
  for (int i = 0; i < 2; ++i) small.Note(800);
  EXPECT_EQ(small.expected_us(), 0u);
}

TEST(Waiter, NapsWhenItHasSpunLongEnough) {
  for (const bool at_once : {true, false}) {
    Words words;
    WaitPolicy policy{.spin_us = 600'000'000, .max_futex_sleep_us = 1000};
    policy.nap_after_us = at_once ? 0 : 600'000'000;
    Waiter waiter(policy, &words.ping, &words.ping_waiting, true, 600'000'000);
    for (int i = 0; i < 64; ++i) waiter.Step(0);
    EXPECT_EQ(LoadAcquire(words.ping_waiting), at_once ? 1u : 0u);
  }
}

TEST(Waiter, SpinningReadsTheClockRarely) {
  Words words;
  const WaitPolicy policy{.spin_us = 60'000'000};
  const auto began = Clock::now();
  Waiter waiter(policy, &words.ping, &words.ping_waiting, true);
  for (int i = 0; i < 31; ++i) waiter.Step(0);
  EXPECT_FALSE(waiter.TimeToCheckPeer());
  EXPECT_LT(Milliseconds(Clock::now() - began), 30'000);
}

TEST(LockBriefly, OneAtATimeAndEachInTheEnd) {
  constexpr int kThreads = 8, kTurns = 2000;
  std::mutex mutex;
  int turns = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < kTurns; ++turn) {
        std::unique_lock lock(mutex, std::defer_lock);
        LockBriefly(lock);
        EXPECT_TRUE(lock.owns_lock());
        ++turns;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(turns, kThreads * kTurns);
}

TEST(LockBriefly, WaitsForAHolderWhoTakesHisTime) {
  std::mutex mutex;
  std::unique_lock held(mutex);
  std::atomic<bool> released{false};
  std::thread other([&] {
    std::unique_lock lock(mutex, std::defer_lock);
    LockBriefly(lock);
    EXPECT_TRUE(released.load());
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  released.store(true);
  held.unlock();
  other.join();
}

// Both sides do nothing but sleep, so that each publishing meets the peer somewhere around the moment of
// falling asleep. A lost wake-up shows as a round of the sleep's full length.
struct RoundTimes {
  uint64_t late = 0;
  double worst_ms = 0;
};
RoundTimes PingPong(const WaitPolicy& policy, bool futex, int rounds, double late_ms) {
  Words words;
  const auto await = [&](HotWord& word, HotWord& waiting, uint64_t value) {
    Waiter waiter(policy, &word, &waiting, futex);
    for (;;) {
      const uint64_t seen = LoadAcquire(word);
      if (seen == value) return;
      waiter.Step(static_cast<uint32_t>(seen));
    }
  };
  std::thread peer([&] {
    test::Random random{1};
    for (int i = 1; i <= rounds; ++i) {
      await(words.ping, words.ping_waiting, static_cast<uint64_t>(i));
      for (uint64_t spin = random.Below(3000); spin > 0; --spin) asm volatile("");
      StoreRelease(words.pong, static_cast<uint64_t>(i));
      Wake(words.pong, words.pong_waiting, futex);
    }
  });
  RoundTimes times;
  test::Random random{2};
  for (int i = 1; i <= rounds; ++i) {
    const auto began = Clock::now();
    for (uint64_t spin = random.Below(3000); spin > 0; --spin) asm volatile("");
    StoreRelease(words.ping, static_cast<uint64_t>(i));
    Wake(words.ping, words.ping_waiting, futex);
    await(words.pong, words.pong_waiting, static_cast<uint64_t>(i));
    const double ms = Milliseconds(Clock::now() - began);
    times.worst_ms = std::max(times.worst_ms, ms);
    if (ms >= late_ms) ++times.late;
  }
  peer.join();
  return times;
}

TEST(WaiterLitmus, FutexWakesLongSleepsAtOnce) {
  const WaitPolicy policy{.spin_us = 0,
                          .yield_us = 0,
                          .first_sleep_us = 900'000,
                          .max_sleep_us = 900'000,
                          .max_futex_sleep_us = 900'000};
  const int rounds = 60'000 / static_cast<int>(test::kLongRunDivisor);
  const RoundTimes times = PingPong(policy, true, rounds, 890);
  // A wake-up may be missed at the moment of raising the flag (here it costs the whole first sleep): rarely.
  EXPECT_LE(times.late, 3u) << "a round lasted " << times.worst_ms << " ms";
}

TEST(WaiterLitmus, WithoutFutexARoundCostsAFewSleepsAtMost) {
  const WaitPolicy policy{.spin_us = 0, .yield_us = 0, .first_sleep_us = 20, .max_sleep_us = 1000};
  const RoundTimes times = PingPong(policy, false, 5'000 / static_cast<int>(test::kLongRunDivisor), 10'000);
  EXPECT_EQ(times.late, 0u) << "a round lasted " << times.worst_ms << " ms";
}

// What the protocol rests on, as a store-buffer test. The publisher stores its word and reads the flag; the
// sleeper raises the flag, reads the word, and reads it again after it has looked on for some time.
struct LitmusSide {
  explicit LitmusSide(size_t rounds) : words(rounds), reads(rounds), late_reads(rounds) {}
  std::vector<HotWord> words;
  std::vector<uint64_t> reads, late_reads;
  alignas(kHotBytes) std::atomic<size_t> ready{0};
};

TEST(WaiterLitmus, HardlyAWakeUpIsMissedOnceTheFlagHasBeenSeen) {
  const size_t rounds = 40'000 / test::kLongRunDivisor;
  LitmusSide publisher(rounds), sleeper(rounds);
  const auto run = [&](LitmusSide& ours, LitmusSide& theirs, uint64_t seed, bool sleeps) {
    test::Random random{seed};
    for (size_t round = 0; round < rounds; ++round) {
      ours.ready.store(round + 1);
      // Without yields, as long as the other side is likely to be on a processor.
      for (int tries = 0; theirs.ready.load() <= round && tries < 50'000; ++tries) asm volatile("");
      test::YieldUntil([&] { return theirs.ready.load() > round; });
      for (uint64_t spin = random.Below(8); spin > 0; --spin) asm volatile("");
      StoreRelease(ours.words[round], 1);
      ours.reads[round] = LoadAcquire(theirs.words[round]);
      if (!sleeps) continue;
      const auto began = Clock::now();
      while (Clock::now() - began < std::chrono::microseconds(Waiter::kSettleUs)) asm volatile("");
      ours.late_reads[round] = LoadAcquire(theirs.words[round]);
    }
  };
  std::thread other(run, std::ref(publisher), std::ref(sleeper), 1, false);
  run(sleeper, publisher, 2, true);
  other.join();
  size_t missed = 0, missed_late = 0;
  for (size_t round = 0; round < rounds; ++round) {
    const bool no_wake = publisher.reads[round] == 0;
    if (no_wake && sleeper.reads[round] == 0) ++missed;
    if (no_wake && sleeper.late_reads[round] == 0) ++missed_late;
  }
  printf("wake-ups missed at first: %zu of %zu; some microseconds later: %zu\n", missed, rounds, missed_late);
  // Not never: a core that stands still keeps what it stored to itself meanwhile (docs/waiting.md). Were nothing gained by looking on,
  // as many would be missed as at first.
  EXPECT_LE(missed_late, std::max<size_t>(1, missed / 4));
}

}  // namespace
}  // namespace causeway
