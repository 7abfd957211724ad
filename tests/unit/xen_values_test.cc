// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "host_backend/daemon/xen/departing_pages.h"
#include "host_backend/daemon/xen/grant_memory.h"
#include "host_backend/daemon/xen/xen_values.h"
#include "host_backend/granted/sleep_word.h"
#include "ivshmem_ring/transport/ring.h"
#include "tests/yield_until.h"

namespace causeway::daemon {
namespace {

TEST(XenValues, ANumberIsItsOwnText) {
  EXPECT_EQ(ReadXenNumber("0", 0, 10), 0u);
  EXPECT_EQ(ReadXenNumber("10", 0, 10), 10u);
  EXPECT_EQ(ReadXenNumber("18446744073709551615", 0, ~uint64_t{0}), ~uint64_t{0});
}

TEST(XenValues, NothingElseIsANumber) {
  for (const std::string text : {"", " 1", "1 ", "+1", "-1", "01", "00", "0x1", "1e3", "11", "1\n", "one",
                                 "18446744073709551616", "99999999999999999999999999"}) {
    EXPECT_FALSE(ReadXenNumber(text, 0, 10)) << text;
  }
  EXPECT_FALSE(ReadXenNumber(std::string_view("1\0", 2), 0, 10));
  EXPECT_FALSE(ReadXenNumber("4", 5, 10));
}

TEST(XenValues, AStateIsOneOfXenbus) {
  EXPECT_EQ(ReadXenbusState("4"), XenbusState::kConnected);
  EXPECT_EQ(ReadXenbusState("6"), XenbusState::kClosed);
  for (const std::string text : {"7", "8", "-1", "", "4 ", "44", "connected"})
    EXPECT_EQ(ReadXenbusState(text), XenbusState::kUnknown) << text;
  EXPECT_EQ(ReadXenbusState(std::nullopt), XenbusState::kUnknown);
}

// What docs/xen.md tells administrators to configure.
TEST(GrantMemory, NeedsFollowFromTheSize) {
  const GrantNeeds small = NeedsOf(uint64_t{64} << 20), large = NeedsOf(uint64_t{1} << 30);
  EXPECT_EQ(small.pages, 16384u + 16 + 1);
  EXPECT_EQ(small.frames, 33u);
  EXPECT_EQ(small.maptracks, 65u);
  EXPECT_EQ(large.pages, 262144u + 256 + 1);
  EXPECT_EQ(large.frames, 513u);
}

TEST(DepartingPages, TheyLeaveByTheSecond) {
  using std::chrono::seconds;
  DepartingPages pages;
  const DepartingPages::Time begun = std::chrono::steady_clock::now();
  EXPECT_EQ(pages.Left(begun), 0u);
  pages.Add(16401, 1000, begun);
  EXPECT_EQ(pages.Left(begun), 16401u);
  EXPECT_EQ(pages.Left(begun + seconds(9)),
            10000u);  // two seconds pass before the first are sure to have left
  EXPECT_EQ(pages.Left(begun + seconds(18)), 1000u);
  EXPECT_EQ(pages.Left(begun + seconds(19)), 0u);
}

TEST(DepartingPages, ThoseOfTwoRegionsLeaveAfterEachOther) {
  using std::chrono::seconds;
  DepartingPages pages;
  const DepartingPages::Time begun = std::chrono::steady_clock::now();
  pages.Add(5000, 1000, begun);
  pages.Add(5000, 1000, begun + seconds(4));
  EXPECT_EQ(pages.Left(begun + seconds(4)), 8000u);
  EXPECT_EQ(pages.Left(begun + seconds(13)), 1000u);
  EXPECT_EQ(pages.Left(begun + seconds(14)), 0u);
}

TEST(DepartingPages, WithoutALimitOfTheirPaceTheyLeaveTogether) {
  using std::chrono::seconds;
  DepartingPages pages;
  const DepartingPages::Time begun = std::chrono::steady_clock::now();
  pages.Add(1'000'000, 0, begun);
  EXPECT_EQ(pages.Left(begun + seconds(1)), 1'000'000u);
  EXPECT_EQ(pages.Left(begun + seconds(2)), 0u);
}

// As a worker sleeps whose ring lies in granted memory, and as the daemon wakes it, each by its own mapping.
TEST(SleepWord, WhoSleepsIsWokenThroughTheOtherMapping) {
  const auto daemons = SleepWord::Make();
  ASSERT_NE(daemons, nullptr);
  const auto workers = SleepWord::Of(UniqueFd(dup(daemons->fd())));
  ASSERT_NE(workers, nullptr);
  HotWord word{};
  // A ring that comes before the thread has gone to sleep ends its call at once, and it calls again.
  std::thread sleeper([&] {
    while (LoadAcquire(word) == 0) workers->Sleep(word, 0, 600'000'000);
  });
  test::SleepUntil([&] { return daemons->Wake() != 0; });
  StoreRelease(word, 1);
  daemons->Wake();
  sleeper.join();
  workers->Sleep(word, 0, 600'000'000);  // it has changed: returns at once
}

TEST(SleepWord, MemoryThatCouldShrinkIsNone) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), sizeof(uint32_t)), 0);
  EXPECT_EQ(SleepWord::Of(std::move(fd)), nullptr);
  EXPECT_EQ(SleepWord::Of(UniqueFd(open("/dev/null", O_RDWR))), nullptr);
}

// Outside of Xen there is no device, and the sentence says what is missing.
TEST(GrantMemory, WithoutXenItSaysWhatIsMissing) {
  if (access("/dev/xen/gntalloc", F_OK) == 0) GTEST_SKIP() << "this machine is a domain of Xen";
  const auto memory = MakeGrantMemory(1, uint64_t{64} << 20);
  ASSERT_FALSE(memory.ok());
  EXPECT_NE(memory.error().find("/dev/xen/gntalloc cannot be opened"), std::string::npos);
}

}  // namespace
}  // namespace causeway::daemon
