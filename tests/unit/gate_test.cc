// SPDX-License-Identifier: Apache-2.0
// The gate by itself, under a clock of the test's own, and what the daemon makes of its words.
#include "host_backend/worker/gate/gate.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "host_backend/daemon/shares/cell_watch.h"

namespace causeway::test {
namespace {

using daemon::CellWatch;
using daemon::Demand;
using host::Gate;

constexpr uint64_t kMs = 1'000'000;

class GateTest : public testing::Test, public host::Surroundings {
 protected:
  GateTest() : gate_(grant_, words_, *this) { Give(Grant::kTurn); }

  uint64_t NowNs() override { return now_ns_ += 100; }
  bool Mark(std::atomic<uint32_t>& word, uint32_t value) override {
    if (captures_) return false;
    if (on_mark_) std::exchange(on_mark_, nullptr)();
    marks_.emplace_back(&word, value);
    return true;
  }
  void Wake() override { ++wakes_; }
  void Waited(uint64_t nanoseconds) override { waited_ns_ += nanoseconds; }
  void Sleep(const std::atomic<uint32_t>&, uint32_t, uint64_t nanoseconds) override {
    ++sleeps_;
    slept_ns_ += nanoseconds;
    now_ns_ += nanoseconds;
    if (on_sleep_) on_sleep_();
  }

  void Give(Grant grant) {
    grant_.grant = static_cast<uint32_t>(grant);
    grant_.seen_ns = now_ns_;
    if (grant == Grant::kOpen || grant == Grant::kAsleep) ++grant_.openings;
  }
  // One record, and whether it could pass at once.
  bool Record(bool more = true) {
    if (!gate_.MayPass(now_ns_)) return false;
    gate_.Leave(more);
    return true;
  }
  // The GPU finishes the oldest mark after so long.
  void Finish(uint64_t nanoseconds = 0) {
    now_ns_ += nanoseconds;
    ASSERT_FALSE(marks_.empty());
    *marks_.front().first = marks_.front().second;
    marks_.erase(marks_.begin());
  }

  uint64_t now_ns_ = 1000 * kMs, slept_ns_ = 0;
  uint64_t waited_ns_ = 0;
  int sleeps_ = 0, wakes_ = 0;
  bool captures_ = false;
  std::atomic<bool> stop_{false};
  std::function<void()> on_sleep_, on_mark_;
  std::vector<std::pair<std::atomic<uint32_t>*, uint32_t>> marks_;  // that the GPU has not reached
  GrantWords grant_{};
  TurnWords words_{};
  Gate gate_;
};

TEST_F(GateTest, OpenAsksNothing) {
  Give(Grant::kOpen);
  const uint64_t before = now_ns_;
  for (uint64_t i = 1; i <= 1000; ++i) {
    ASSERT_TRUE(gate_.Enter(stop_));
    gate_.Leave(i % 2 == 0);
  }
  EXPECT_EQ(now_ns_, before);  // nobody looked at a clock
  EXPECT_TRUE(marks_.empty());
  EXPECT_EQ(words_.submitted, 1000u);
}

// What NVIDIA's driver queues has one mark behind it when another VM comes.
TEST_F(GateTest, WhatIsQueuedWhileItIsOpenIsKnown) {
  const auto queue = [&] {
    Give(Grant::kOpen);
    for (int i = 0; i < 1022; ++i) {
      ASSERT_TRUE(gate_.Enter(stop_));
      gate_.Leave(true);
    }
  };
  queue();
  CellWatch watch;
  watch.Open(0, words_);
  Give(Grant::kClosed);
  gate_.MarkQueued();
  ASSERT_EQ(marks_.size(), 1u);
  EXPECT_TRUE(watch.Look(now_ns_).busy);
  Finish();
  EXPECT_FALSE(watch.Look(now_ns_).busy);
  // It counts as one in the VM's turn, and teaches nothing: the batch is what it was.
  queue();
  gate_.MarkQueued();
  Give(Grant::kTurn);
  EXPECT_TRUE(Record());
  EXPECT_FALSE(Record());
  while (!marks_.empty()) Finish(20 * kMs);
  EXPECT_TRUE(Record());
}

// VMs come and go: no mark is lost, and none is outstanding for ever.
TEST_F(GateTest, MarksBehindWhatIsQueuedAreUsedAgain) {
  Give(Grant::kOpen);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(gate_.Enter(stop_));
    gate_.Leave(true);
    gate_.MarkQueued();
    ASSERT_LE(marks_.size(), size_t{kTurnMarks});
    if (i % 20 == 19) {
      while (!marks_.empty()) Finish();
    }
  }
  CellWatch watch;
  watch.Open(0, words_);
  EXPECT_FALSE(watch.Look(now_ns_).busy);
}

// The driver's queue is full, and what would make room is a record that another thread waits for here.
TEST_F(GateTest, RecordsPassWhileAMarkWaitsForRoom) {
  Give(Grant::kOpen);
  EXPECT_TRUE(gate_.Enter(stop_));
  gate_.Leave(true);
  Give(Grant::kTurn);
  bool passes = false;
  on_mark_ = [&] { std::thread([&] { passes = gate_.MayPass(now_ns_); }).join(); };
  gate_.MarkQueued();
  EXPECT_TRUE(passes);
}

TEST_F(GateTest, ACaptureTakesNoMarkWhileItIsOpen) {
  Give(Grant::kOpen);
  captures_ = true;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(gate_.Enter(stop_));
    gate_.Leave(true);
  }
  gate_.MarkQueued();
  CellWatch watch;
  watch.Open(0, words_);
  EXPECT_FALSE(watch.Look(now_ns_).busy);
}

TEST_F(GateTest, BusyProcessesAreCounted) {
  CellWatch watch;
  TurnWords others[3]{};
  watch.Open(0, words_);
  for (uint32_t i = 0; i < 3; ++i) watch.Open(i + 1, others[i]);
  EXPECT_EQ(watch.Look(now_ns_).contexts, 1u);  // of nobody; an arbiter divides by it
  others[0].unmarked = 1;
  others[2].sent[5] = 7;
  EXPECT_EQ(watch.Look(now_ns_).contexts, 2u);
}

TEST_F(GateTest, AsleepPassesAndWakes) {
  Give(Grant::kAsleep);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(gate_.Enter(stop_));
    gate_.Leave(false);
  }
  EXPECT_EQ(wakes_, 3);
  EXPECT_TRUE(marks_.empty());
  EXPECT_FALSE(gate_.HasUnmarked());
  EXPECT_EQ(sleeps_, 0);
}

TEST_F(GateTest, AMarkCanBeTakenAlong) {
  EXPECT_FALSE(gate_.TakeMark());  // nothing to mark
  for (int i = 0; i < 20; ++i) {
    while (Record()) {
    }
    Finish(10'000);
  }
  while (marks_.size() > 0) Finish();
  EXPECT_TRUE(Record());
  ASSERT_TRUE(gate_.HasUnmarked());
  std::optional<Gate::Mark> mark = gate_.TakeMark();
  ASSERT_TRUE(mark);
  EXPECT_FALSE(gate_.HasUnmarked());
  CellWatch watch;
  watch.Open(0, words_);
  EXPECT_TRUE(watch.Look(now_ns_).busy);
  words_.done[mark->slot] = mark->value;
  EXPECT_FALSE(watch.Look(now_ns_).busy);
  EXPECT_TRUE(Record());
  mark = gate_.TakeMark();
  ASSERT_TRUE(mark);
  gate_.DropMark(*mark);
  EXPECT_FALSE(watch.Look(now_ns_).busy);
}

TEST_F(GateTest, AMarkOfOneThreadLeavesTheOthersRecords) {
  for (int i = 0; i < 20; ++i) {
    while (Record()) {
    }
    Finish(10'000);
  }
  while (marks_.size() > 0) Finish();
  EXPECT_TRUE(Record());
  EXPECT_TRUE(Record(false));
  EXPECT_EQ(words_.unmarked, 1u);
  gate_.MarkRest();
  EXPECT_EQ(words_.unmarked, 0u);
  EXPECT_EQ(marks_.size(), 2u);
}

TEST_F(GateTest, ClosedWaitsUntilItIsGranted) {
  Give(Grant::kClosed);
  on_sleep_ = [this] {
    EXPECT_EQ(words_.waiting, 1u);
    Give(sleeps_ == 7 ? Grant::kTurn : Grant::kClosed);
  };
  EXPECT_TRUE(gate_.Enter(stop_));
  EXPECT_EQ(sleeps_, 7);
  EXPECT_EQ(words_.waiting, 0u);
  EXPECT_GE(waited_ns_, slept_ns_);
}

TEST_F(GateTest, StoppedSessionsDoNotWait) {
  Give(Grant::kClosed);
  on_sleep_ = [this] {
    Give(Grant::kClosed);
    stop_ = sleeps_ == 3;
  };
  EXPECT_FALSE(gate_.Enter(stop_));
  EXPECT_EQ(words_.waiting, 0u);
}

TEST_F(GateTest, WithoutADaemonEverythingPasses) {
  for (const Grant grant : {Grant::kClosed, Grant::kTurn, Grant::kBeside, Grant(77)}) {
    Give(grant);
    const uint64_t begin = now_ns_;
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(gate_.Enter(stop_));
      gate_.Leave(true);
    }
    EXPECT_LE(now_ns_ - begin, kGrantLifeNs + 6 * kMs);
  }
}

TEST_F(GateTest, TwoMarksMayBeOutstanding) {
  EXPECT_TRUE(Record());
  EXPECT_TRUE(Record());
  EXPECT_FALSE(Record());
  EXPECT_EQ(marks_.size(), 2u);
  Finish(kMs / 2);
  EXPECT_TRUE(Record());
  EXPECT_FALSE(Record());
}

TEST_F(GateTest, OneOfALongKernel) {
  EXPECT_TRUE(Record());
  Finish(20 * kMs);
  EXPECT_TRUE(Record());
  EXPECT_FALSE(Record());
}

TEST_F(GateTest, ShortRecordsShareAMark) {
  size_t records = 0;
  for (int i = 0; i < 20; ++i) {
    while (Record()) ++records;
    Finish(10'000);
  }
  EXPECT_GT(records, 20u * 8);
  // And one that is followed by nothing has its own.
  while (marks_.size() > 0) Finish();
  EXPECT_TRUE(Record(false));
  EXPECT_EQ(words_.unmarked, 0u);
  EXPECT_EQ(marks_.size(), 1u);
}

TEST_F(GateTest, LongRecordsAreSingleAgain) {
  for (int i = 0; i < 20; ++i) {
    while (Record()) {
    }
    Finish(10'000);
  }
  while (marks_.size() > 0) Finish(5 * kMs);
  EXPECT_TRUE(Record());
  Finish(5 * kMs);
  EXPECT_TRUE(Record());
  EXPECT_EQ(words_.unmarked, 0u);
  EXPECT_FALSE(Record());
}

TEST_F(GateTest, WhatPassedBeforeAWaitIsMarked) {
  for (int i = 0; i < 20; ++i) {
    while (Record()) {
    }
    Finish(10'000);
  }
  while (marks_.size() > 0) Finish();
  EXPECT_TRUE(Record());
  EXPECT_EQ(words_.unmarked, 1u);
  Give(Grant::kClosed);
  EXPECT_FALSE(Record());
  EXPECT_EQ(words_.unmarked, 0u);
  EXPECT_EQ(marks_.size(), 1u);
}

TEST_F(GateTest, WhatPassedWhileItWasOpenIsMarkedOnce) {
  Give(Grant::kOpen);
  EXPECT_TRUE(gate_.Enter(stop_));
  gate_.Leave(true);
  Give(Grant::kClosed);
  EXPECT_FALSE(Record());
  EXPECT_EQ(marks_.size(), 1u);
  EXPECT_FALSE(Record());
  EXPECT_EQ(marks_.size(), 1u);
}

// A kernel that waits for a flag which the thousandth launch after it sets.
TEST_F(GateTest, MorePassesWhileNothingIsFinished) {
  int passed = 0;
  const uint64_t begin = now_ns_;
  while (passed < 1000 && now_ns_ - begin < 1000 * kMs) {
    Give(Grant::kTurn);
    if (Record()) {
      ++passed;
    } else {
      now_ns_ += kMs;
    }
  }
  EXPECT_EQ(passed, 1000);
  EXPECT_GE(now_ns_ - begin, 100 * kMs);  // not before it was sure that nothing is finished
  EXPECT_LE(marks_.size(), size_t{kTurnMarks});
}

TEST_F(GateTest, CapturesLeaveNothingBusy) {
  captures_ = true;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Record());
  CellWatch watch;
  watch.Open(0, words_);
  EXPECT_FALSE(watch.Look(now_ns_).busy);
}

TEST_F(GateTest, TheDaemonSeesWorkAndItsEnd) {
  CellWatch watch;
  watch.Open(3, words_);
  EXPECT_FALSE(watch.Look(now_ns_).busy);
  EXPECT_TRUE(gate_.Enter(stop_));
  gate_.Leave(false);
  Demand demand = watch.Look(now_ns_);
  EXPECT_TRUE(demand.busy);
  EXPECT_FALSE(demand.stuck);
  EXPECT_EQ(demand.submitted, 1u);
  EXPECT_TRUE(watch.Look(now_ns_ + 60 * kMs).stuck);
  Finish();
  EXPECT_FALSE(watch.Look(now_ns_ + 61 * kMs).busy);
  watch.Close(3);
  EXPECT_EQ(watch.Look(now_ns_).submitted, 1u);  // its end is no submission
  EXPECT_TRUE(watch.empty());
}

// Dead inside its turn: its words stay as they were until the daemon closes the cell.
TEST_F(GateTest, AWorkerThatDiesHoldsNothing) {
  CellWatch watch;
  watch.Open(0, words_);
  EXPECT_TRUE(Record());
  words_.waiting = 5;
  EXPECT_TRUE(watch.Look(now_ns_).busy);
  watch.Close(0);
  const Demand demand = watch.Look(now_ns_);
  EXPECT_FALSE(demand.busy || demand.waiting || demand.stuck);
}

// Whatever a worker that was taken over writes: the daemon gets an answer, for that worker's VM.
TEST_F(GateTest, GarbageInACellIsOnlyADemand) {
  std::mt19937_64 random(18);
  CellWatch watch;
  watch.Open(0, words_);
  uint64_t now = now_ns_;
  for (int i = 0; i < 10'000; ++i) {
    words_.submitted = random();
    words_.waiting = static_cast<uint32_t>(random());
    words_.unmarked = static_cast<uint32_t>(random());
    for (uint32_t slot = 0; slot < kTurnMarks; ++slot) {
      words_.sent[slot] = static_cast<uint32_t>(random());
      words_.done[slot] = static_cast<uint32_t>(random());
    }
    const Demand demand = watch.Look(now += kMs);
    EXPECT_TRUE(demand.busy);
  }
  watch.Close(0);
  watch.Close(0);
  EXPECT_FALSE(watch.Look(now).busy);
}

}  // namespace
}  // namespace causeway::test
