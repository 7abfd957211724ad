// SPDX-License-Identifier: Apache-2.0
// How many spares follow which sessions, and how many workers start at once: by a made-up clock, and with
// made-up drivers whose starts disturb each other or do not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "host_backend/daemon/pool/spare_demand.h"

namespace causeway::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr uint32_t kMuchRoom = 64;

class SpareDemandTest : public ::testing::Test {
 protected:
  // `count` sessions of the scope at equal distances; each finds a spare.
  void Stream(const std::string& scope, int count, milliseconds apart) {
    for (int i = 0; i < count; ++i) {
      now_ += apart;
      demand_.Asked(scope, 0, now_);
    }
  }
  uint32_t Extra(uint32_t room = kMuchRoom) const { return demand_.Extra(room, now_); }

  SpareDemand demand_;
  SpareDemand::Time now_{std::chrono::hours(1)};
};

TEST_F(SpareDemandTest, ASessionNowAndThenCallsForNone) {
  demand_.Ready(milliseconds(200));
  EXPECT_EQ(Extra(), 0u) << "nobody has asked";
  demand_.Asked("a", 1, now_);
  EXPECT_EQ(Extra(), 0u) << "the first spare of all is on its way to it";
  Stream("a", 20, seconds(5));
  EXPECT_EQ(Extra(), 0u);
}

TEST_F(SpareDemandTest, AStreamCallsForItsRateTimesTheTimeToBecomeReady) {
  demand_.Ready(milliseconds(500));
  Stream("a", 200, milliseconds(100));
  EXPECT_EQ(Extra(), 5u) << "10 a second, half a second each";
  Stream("a", 200, milliseconds(50));
  EXPECT_EQ(Extra(), 10u);
  for (int i = 0; i < 100; ++i) demand_.Ready(milliseconds(100));
  Stream("a", 400, milliseconds(50));
  EXPECT_EQ(Extra(), 2u) << "the driver starts faster now";
}

TEST_F(SpareDemandTest, SessionsThatWaitTogetherCallForAsManyAtOnce) {
  demand_.Ready(milliseconds(100));
  for (uint32_t waiting = 0; waiting < 6; ++waiting) demand_.Asked("a", waiting, now_);
  EXPECT_EQ(Extra(), 5u) << "one of six found a spare";
  now_ += milliseconds(100);
  demand_.Asked("a", 1, now_);
  EXPECT_EQ(Extra(), 5u) << "and they will come together again";
}

TEST_F(SpareDemandTest, ASessionThatFindsNoSpareSoonAfterAnotherCallsForOneMore) {
  demand_.Ready(milliseconds(100));
  demand_.Asked("a", 0, now_);
  now_ += milliseconds(50);
  demand_.Asked("a", 1, now_);
  EXPECT_EQ(Extra(), 1u);
}

TEST_F(SpareDemandTest, ItIsForgottenWithinSecondsOfRest) {
  for (uint32_t waiting = 0; waiting < 12; ++waiting) demand_.Asked("a", waiting, now_);
  uint32_t before = Extra();
  EXPECT_EQ(before, 11u);
  for (int second = 0; second < 15; ++second) {
    now_ += seconds(1);
    EXPECT_LE(Extra(), before);
    before = Extra();
  }
  EXPECT_EQ(before, 0u);
}

TEST_F(SpareDemandTest, NoScopeGetsMoreThanHalfOfTheRoom) {
  demand_.Ready(seconds(1));
  Stream("flood", 3000, milliseconds(1));
  EXPECT_EQ(Extra(16), 8u);
  demand_.Asked("quiet", 2, now_);
  EXPECT_EQ(Extra(16), 10u) << "what another scope's sessions call for comes on top";
  for (int i = 0; i < 100; ++i) demand_.Asked("user " + std::to_string(i), 5, now_);
  EXPECT_EQ(Extra(16), 16u) << "and all together no more than there is room for";
  EXPECT_EQ(Extra(1), 1u);
  EXPECT_EQ(Extra(0), 0u);
  demand_.Forget();
  EXPECT_EQ(Extra(), 0u);
}

TEST(SpareRoomTest, EachBoundHolds) {
  SpareRoom room;
  room.configured = 15;
  room.processors = 16;
  room.host_free_bytes = uint64_t{64} << 30;
  room.host_spare_bytes = uint64_t{128} << 20;
  EXPECT_EQ(room.Count(), 15u);
  room.processors = 4;
  EXPECT_EQ(room.Count(), 4u);
  room.processors = 16;
  room.host_free_bytes = uint64_t{4} << 30;
  EXPECT_EQ(room.Count(), 4u) << "an eighth of 4 GiB, 128 MiB each";
  room.host_free_bytes -= 4 * room.host_spare_bytes;
  room.held = 4;
  EXPECT_EQ(room.Count(), 4u) << "those that are there do not take from what they are measured by";
  room.held = 0;
  room.host_spare_bytes = 0;
  EXPECT_EQ(room.Count(), 1u) << "a usual size is 256 MiB";
  room.host_free_bytes = 0;
  EXPECT_EQ(room.Count(), 0u) << "a host that does not say what it has";
}

TEST(SpareRoomTest, AFullGpuLeavesNone) {
  SpareRoom room{15, 16, uint64_t{64} << 30, uint64_t{128} << 20, uint64_t{80} << 30, uint64_t{512} << 20, 0};
  EXPECT_EQ(room.Count(), 15u);
  room.device_free_bytes = uint64_t{8} << 30;
  EXPECT_EQ(room.Count(), 2u);
  room.device_free_bytes = uint64_t{1} << 30;
  EXPECT_EQ(room.Count(), 0u);
}

// Workers that are started as fast as the limit lets them, when `alone` is how long one takes by itself and
// `times(n)` by how much longer one takes of n at once. The limit in the end.
uint32_t LimitWith(StartingLimit& limit, int starts, const std::function<double(double)>& times) {
  for (int i = 0; i < starts; ++i) {
    const double beside = limit.limit();
    limit.Ready(std::chrono::duration_cast<StartingLimit::Duration>(
                    std::chrono::duration<double>(0.12 * times(beside))),
                beside);
  }
  return limit.limit();
}

TEST(StartingLimitTest, StartsThatDoNotDisturbEachOtherAreMany) {
  StartingLimit limit;
  EXPECT_EQ(limit.limit(), StartingLimit::kLeast);
  EXPECT_EQ(LimitWith(limit, 12, [](double) { return 1.0; }), StartingLimit::kMost);
  int at_most = 0;
  for (int i = 0; i < 1000; ++i)
    at_most += LimitWith(limit, 1, [](double) { return 1.0; }) == StartingLimit::kMost ? 1 : 0;
  EXPECT_GE(at_most, 900) << "others are tried again now and then";
  EXPECT_LT(at_most, 1000);
}

TEST(StartingLimitTest, StartsThatTakeTurnsAreFew) {
  StartingLimit limit;
  EXPECT_EQ(LimitWith(limit, 12, [](double beside) { return beside; }), StartingLimit::kLeast);
  EXPECT_EQ(LimitWith(limit, 40, [](double beside) { return beside; }), StartingLimit::kLeast);
}

TEST(StartingLimitTest, TheBestNumberIsFoundAgainWhenTheHostChanges) {
  const auto best_at_three = [](double beside) { return beside <= 3 ? 1 : 2 * beside; };
  StartingLimit limit;
  EXPECT_EQ(LimitWith(limit, 20, best_at_three), 3u);
  EXPECT_EQ(LimitWith(limit, 40, [](double beside) { return std::pow(beside, 1.5); }), StartingLimit::kLeast);
  EXPECT_EQ(LimitWith(limit, 200, [](double) { return 1.0; }), StartingLimit::kMost);
}

TEST(StartingLimitTest, AWorkerThatStartsAloneTellsNothing) {
  StartingLimit limit;
  for (int i = 0; i < 100; ++i) limit.Ready(milliseconds(120), 1);
  EXPECT_EQ(limit.limit(), StartingLimit::kLeast);
}

}  // namespace
}  // namespace causeway::daemon
