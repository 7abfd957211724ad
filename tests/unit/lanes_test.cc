// SPDX-License-Identifier: Apache-2.0
// Lanes: what keeps its order, what waits for what, and what does not.
#include "host_backend/worker/process/lanes.h"
#include "tests/yield_until.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <semaphore>
#include <vector>

namespace causeway::host {
namespace {

using Names = Lanes::Names;

// A posted record of so many bytes.
std::vector<std::byte> Record(uint64_t sequence, size_t bytes = sizeof(RecordHeader)) {
  std::vector<std::byte> record(bytes);
  PostedHeader header{};
  header.bytes = static_cast<uint32_t>(bytes);
  header.sequence = sequence;
  std::memcpy(record.data(), &header, sizeof header);
  return record;
}

uint64_t SequenceOf(std::span<const std::byte> record) {
  return ReadHeader<PostedHeader>(record).sequence;
}

// No atomics: only the order that lanes promise makes this free of races, as TSan can tell.
TEST(Lanes, KeepTheOrderOfThreadsStreamsAndEvents) {
  constexpr uint64_t kRecords = 5000;
  constexpr uint32_t kThreads = 12, kStreams = 9, kEvents = 5;
  std::vector<Names> names(kRecords);
  std::vector<uint64_t> of_thread(kThreads), of_stream(kStreams), of_event(kEvents);
  std::vector<uint8_t> wrong(kRecords);
  Lanes lanes(4, [&](std::span<const std::byte> record) {
    const uint64_t sequence = SequenceOf(record);
    const Names& own = names[sequence];
    const auto follow = [&](uint64_t& last) {
      if (last > sequence) wrong[sequence] = 1;
      last = sequence;
    };
    follow(of_thread[own.thread]);
    follow(of_stream[own.stream - 1]);
    if (own.event != 0) follow(of_event[own.event - 1]);
  });
  std::mt19937 random(1);
  for (uint64_t i = 0; i < kRecords; ++i) {
    names[i] = {static_cast<uint32_t>(random() % kThreads), 1 + random() % kStreams, 0};
    if (random() % 4 == 0) names[i].event = 1 + random() % kEvents;
    ASSERT_TRUE(lanes.Hand(names[i], Record(i, sizeof(RecordHeader) + random() % 3000)));
  }
  ASSERT_TRUE(lanes.Drain());
  for (uint64_t i = 0; i < kRecords; ++i) EXPECT_EQ(wrong[i], 0) << i;
}

TEST(Lanes, WhoAwaitsASequenceFindsAllBeforeItExecuted) {
  constexpr uint64_t kRecords = 5000;
  std::vector<uint8_t> executed(kRecords);
  std::atomic<uint64_t> dispatched{0};
  std::atomic<int> missing{0};
  Lanes lanes(3, [&](std::span<const std::byte> record) { executed[SequenceOf(record)] = 1; });
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&] {
      test::YieldUntil([&] {
        const uint64_t upto = dispatched.load(std::memory_order_acquire);
        EXPECT_TRUE(lanes.Await(upto));
        for (uint64_t at = upto > 100 ? upto - 100 : 0; at < upto; ++at) missing += executed[at] == 0;
        return upto == kRecords;
      });
    });
  }
  for (uint64_t i = 0; i < kRecords; ++i) {
    if (i % 50 == 49) {  // as the dispatcher executes a record by itself
      ASSERT_TRUE(lanes.Drain());
      executed[i] = 1;
    } else {
      ASSERT_TRUE(lanes.Hand({static_cast<uint32_t>(i * i % 7), i * i % 7}, Record(i)));
    }
    dispatched.store(i + 1, std::memory_order_release);
  }
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(missing.load(), 0);
}

// A record that the driver holds up holds up neither other threads nor who waits for what came before it.
class HeldLanes : public testing::Test {
 protected:
  static constexpr uint64_t kHeld = 1;
  std::counting_semaphore<> go_{0};
  std::atomic<uint64_t> executed_{0};
  Lanes lanes_{2, [this](std::span<const std::byte> record) {
                 if (SequenceOf(record) == kHeld) go_.acquire();
                 executed_.fetch_add(1);
               }};
  ~HeldLanes() override { go_.release(); }  // if the test has not
};

TEST_F(HeldLanes, OthersGoOn) {
  ASSERT_TRUE(lanes_.Hand({1, 1}, Record(0)));
  ASSERT_TRUE(lanes_.Hand({1, 1}, Record(kHeld)));
  for (uint64_t i = 2; i < 2000; ++i) ASSERT_TRUE(lanes_.Hand({2, 2}, Record(i)));
  ASSERT_TRUE(lanes_.Await(kHeld));
  test::YieldUntil([&] { return executed_.load() == 1999; });
  std::atomic<bool> awaited{false};
  std::thread waiter([&] {
    EXPECT_TRUE(lanes_.Await(kHeld + 1));
    awaited.store(true);
  });
  EXPECT_FALSE(awaited.load());
  go_.release();
  waiter.join();
  EXPECT_TRUE(lanes_.Drain());
  EXPECT_EQ(executed_.load(), 2000u);
  go_.release();
}

TEST(Lanes, WhatComesAfterAHeldRecordHoldsUpItsOwnLaneAlone) {
  constexpr uint64_t kHeld = 1, kAfter = 2, kEvent = 9;
  std::counting_semaphore<> go{0};
  std::atomic<uint64_t> executed{0};
  Lanes lanes(3, [&](std::span<const std::byte> record) {
    const uint64_t sequence = SequenceOf(record);
    if (sequence == kHeld) go.acquire();
    const uint64_t before = executed.fetch_add(1);
    EXPECT_TRUE(sequence != kAfter || before == 102) << before;
  });
  ASSERT_TRUE(lanes.Hand({1, 1, kEvent}, Record(kHeld)));
  ASSERT_TRUE(lanes.Hand({2, 2, kEvent}, Record(kAfter)));
  for (uint64_t i = 3; i < 104; ++i) ASSERT_TRUE(lanes.Hand({3, 3}, Record(i)));
  test::YieldUntil([&] { return executed.load() == 101; });
  go.release();
  EXPECT_TRUE(lanes.Drain());
  EXPECT_EQ(executed.load(), 103u);
}

// Both lanes have one record of one thread. The one made last went on last.
TEST(Lanes, AmongEqualsTheOneThatWentOnLastIsTaken) {
  std::counting_semaphore<> held{0}, other{0};
  std::atomic<uint64_t> executed{0};
  Lanes lanes(2, [&](std::span<const std::byte> record) {
    if (SequenceOf(record) == 0) held.acquire();
    if (SequenceOf(record) == 1) other.acquire();
    executed.fetch_add(1);
  });
  for (const uint64_t i : {0, 1, 2})
    ASSERT_TRUE(lanes.Hand({static_cast<uint32_t>(i + 1), i + 1}, Record(i)));
  other.release();
  test::YieldUntil([&] { return executed.load() == 2; });  // it does not wait behind the held one
  held.release();
  EXPECT_TRUE(lanes.Drain());
}

// However many names there are: none waits for another because of its number.
TEST_F(HeldLanes, OtherNamesGoOn) {
  ASSERT_TRUE(lanes_.Hand({1, 1, 1}, Record(kHeld)));
  for (uint64_t name = 2; name < 1000; ++name) {
    ASSERT_TRUE(lanes_.Hand({static_cast<uint32_t>(name), name, name}, Record(name)));
    test::YieldUntil([&] { return executed_.load() == name - 1; });
  }
  go_.release();
  EXPECT_TRUE(lanes_.Drain());
}

// More of them at once than have places.
TEST(Lanes, ManyNamesAtOnceKeepTheirOrder) {
  constexpr uint64_t kRecords = 20'000, kNames = 600;
  std::vector<uint64_t> last(kNames);
  std::vector<uint8_t> wrong(kRecords);
  Lanes lanes(3, [&](std::span<const std::byte> record) {
    const uint64_t sequence = SequenceOf(record);
    uint64_t& before = last[sequence * sequence % kNames];
    wrong[sequence] = before > sequence;
    before = sequence;
  });
  for (uint64_t i = 0; i < kRecords; ++i)
    ASSERT_TRUE(lanes.Hand({static_cast<uint32_t>(i % 3), 1 + i * i % kNames}, Record(i)));
  ASSERT_TRUE(lanes.Drain());
  for (uint64_t i = 0; i < kRecords; ++i) EXPECT_EQ(wrong[i], 0) << i;
}

TEST(Lanes, TakeThreadsEvenly) {
  std::counting_semaphore<> go{0};
  std::array<std::thread::id, 7> lane_of;
  Lanes lanes(2, [&](std::span<const std::byte> record) {
    go.acquire();
    lane_of[SequenceOf(record)] = std::this_thread::get_id();
  });
  for (const uint64_t i : {0, 1, 2, 3}) ASSERT_TRUE(lanes.Hand({1, 1}, Record(i)));
  for (const uint64_t i : {4, 5, 6}) ASSERT_TRUE(lanes.Hand({static_cast<uint32_t>(i), i}, Record(i)));
  go.release(7);
  ASSERT_TRUE(lanes.Drain());
  EXPECT_NE(lane_of[4], lane_of[0]);
  EXPECT_EQ(lane_of[5], lane_of[4]) << "as many threads in both, less to do in this one";
  EXPECT_EQ(lane_of[6], lane_of[0]) << "fewer threads in this one";
}

TEST_F(HeldLanes, StoppingEndsEveryWait) {
  ASSERT_TRUE(lanes_.Hand({1, 1}, Record(kHeld)));
  std::thread waiter([&] { EXPECT_FALSE(lanes_.Await(kHeld + 1)); });
  std::thread dispatcher([&] {
    uint64_t i = 2;
    while (lanes_.Hand({1, 1}, Record(i))) ++i;  // until the lane is full
    EXPECT_GT(i, 100u);
    EXPECT_FALSE(lanes_.Drain());
    EXPECT_FALSE(lanes_.Hand({2, 1}, Record(i)));  // behind the held one, by its stream
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  lanes_.Stop();
  waiter.join();
  dispatcher.join();
  go_.release();
}

TEST(Lanes, AreWantedWhileSeveralThreadsPost) {
  const auto more = [] { return true; };
  const auto none = [] { return false; };
  std::counting_semaphore<> go{0};
  Lanes lanes(2, [&](std::span<const std::byte>) { go.acquire(); });
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(lanes.Wanted(7, more)) << "one thread";
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(lanes.Wanted(8, more)) << "one goes on for the other";
  EXPECT_FALSE(lanes.Wanted(7, more));
  EXPECT_FALSE(lanes.Wanted(8, none)) << "the dispatcher keeps up";
  EXPECT_TRUE(lanes.Wanted(7, more));
  ASSERT_TRUE(lanes.Hand({7, 1}, Record(0)));
  EXPECT_TRUE(lanes.Wanted(7, none)) << "what came before is being executed";
  go.release();
  ASSERT_TRUE(lanes.Drain());
  EXPECT_FALSE(lanes.Wanted(7, none));
  for (int i = 0; i < 1000; ++i) lanes.Wanted(7, more);
  EXPECT_FALSE(lanes.Wanted(7, more)) << "one thread again";
  Lanes one(1, [](std::span<const std::byte>) {});
  EXPECT_FALSE(one.Wanted(1, more));
  EXPECT_FALSE(one.Wanted(2, more));
}

TEST(Lanes, CountTheThreadsThatPost) {
  const auto more = [] { return true; };
  Lanes lanes(2, [](std::span<const std::byte>) {});
  const auto post = [&](std::initializer_list<uint32_t> threads, int rounds) {
    for (int i = 0; i < rounds; ++i) {
      for (const uint32_t thread : threads) lanes.Wanted(thread, more);
    }
    return lanes.Posting();
  };
  EXPECT_EQ(post({5}, 10), 1u);
  EXPECT_EQ(post({5, 6}, 10), 2u);
  EXPECT_EQ(post({5, 6, 7}, 10), 3u);
  EXPECT_GE(post({1, 2, 3, 4, 5, 6, 7, 8}, 10), 3u);
  EXPECT_EQ(post({5, 6}, 300), 2u) << "the others have ended";
  EXPECT_EQ(post({6}, 300), 1u);
}

}  // namespace
}  // namespace causeway::host
