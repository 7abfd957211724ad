// SPDX-License-Identifier: Apache-2.0
// The page that workers of one VM count on: exact after millions of operations, never over the limit, and
// nothing left by a worker that was killed anywhere.
#include "host_backend/account_page.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>
#include <vector>

#include "host_backend/daemon/accounts.h"

namespace causeway {
namespace {

constexpr uint64_t kMib = 1u << 20;
constexpr char kGpu[] = "0123456789abcde";  // 16 bytes with its end

class AccountPageTest : public ::testing::Test {
 protected:
  AccountPageTest()
      : page_(static_cast<AccountPage*>(
            mmap(nullptr, sizeof(AccountPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    place_ = page_->PlaceOf(kGpu);
  }
  ~AccountPageTest() override { munmap(page_, sizeof(AccountPage)); }

  // Takes and returns at random; what it looks at must never be more than the limit.
  bool Work(uint32_t cell, uint32_t operations, uint32_t seed, const std::atomic<bool>* stop = nullptr) {
    std::minstd_rand random(seed);
    std::vector<std::pair<MemoryKind, uint64_t>> held;
    for (uint32_t i = 0; i < operations && (stop == nullptr || !*stop); ++i) {
      const auto kind = random() % 3 == 0 ? MemoryKind::kManaged : MemoryKind::kDevice;
      const uint64_t bytes = 512 * (1 + random() % 40'000);
      if (random() % 2 == 0 || held.empty()) {
        if (page_->Take(cell, kind, place_, bytes)) held.emplace_back(kind, bytes);
      } else {
        page_->Return(cell, held.back().first, place_, held.back().second);
        held.pop_back();
      }
    }
    for (const auto& [kind, bytes] : held) page_->Return(cell, kind, place_, bytes);
    return true;
  }
  uint64_t Sum() const { return page_->OfKind(MemoryKind::kDevice) + page_->OfKind(MemoryKind::kManaged); }

  AccountPage* page_;
  int place_ = 0;
};

TEST_F(AccountPageTest, DevicesHaveOnePlaceEach) {
  EXPECT_EQ(page_->PlaceOf(kGpu), place_);
  char other[16] = {};
  for (uint32_t i = 1; i < kAccountDevices; ++i) {
    other[3] = static_cast<char>(i);
    EXPECT_EQ(page_->PlaceOf(other), static_cast<int>(i));
  }
  other[3] = 99;
  EXPECT_EQ(page_->PlaceOf(other), kNoDevice);
}

TEST_F(AccountPageTest, TheLimitIsReachedAndNotPassed) {
  page_->Begin(10 * kMib);
  page_->Open(0);
  page_->Open(1);
  EXPECT_TRUE(page_->Take(0, MemoryKind::kDevice, place_, 4 * kMib));
  EXPECT_TRUE(page_->Take(1, MemoryKind::kManaged, place_, 6 * kMib));
  EXPECT_FALSE(page_->Take(0, MemoryKind::kDevice, place_, 1));
  EXPECT_FALSE(page_->Take(0, MemoryKind::kDevice, place_, UINT64_MAX));
  EXPECT_TRUE(page_->Take(0, MemoryKind::kPinned, kNoDevice, 100 * kMib)) << "memory of the host";
  page_->Return(1, MemoryKind::kManaged, place_, kMib);
  EXPECT_TRUE(page_->Take(0, MemoryKind::kDevice, place_, kMib));
}

TEST_F(AccountPageTest, ExactAfterAMillionOperationsOfManyThreads) {
  constexpr uint32_t kThreads = 8, kOperations = 250'000;
  page_->Begin(64 * kMib);
  for (uint32_t cell = 0; cell < kThreads / 2; ++cell) page_->Open(cell);
  std::atomic<bool> stop{false};
  std::thread watcher([&] {
    while (!stop) {
      EXPECT_LE(page_->OnDevice(place_), 64 * kMib);
      usleep(50);
    }
  });
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i)
    threads.emplace_back([=, this] { Work(i / 2, kOperations, i + 1); });
  for (auto& thread : threads) thread.join();
  stop = true;
  watcher.join();
  EXPECT_EQ(page_->OnDevice(place_), 0u);
  EXPECT_EQ(Sum(), 0u);
}

// Killed at any moment, also while it reserves: its cell is cleared, and the others go on.
TEST_F(AccountPageTest, KilledWorkersLeaveNothing) {
  page_->Begin(64 * kMib);
  page_->Open(0);
  page_->Open(1);
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      for (uint32_t seed = 1;; ++seed) Work(1, 100'000, seed);
    }
    usleep(200 + random() % 2000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    page_->Close(1);
    EXPECT_EQ(page_->OnDevice(place_), 0u);
    EXPECT_EQ(Sum(), 0u);
    ASSERT_TRUE(page_->Take(0, MemoryKind::kDevice, place_, 64 * kMib)) << "round " << round;
    page_->Return(0, MemoryKind::kDevice, place_, 64 * kMib);
  }
}

TEST(AccountsTest, SeatsAreTakenAndGivenBack) {
  daemon::Accounts accounts;
  const auto first = accounts.Join("vm:a", 8 * kMib), second = accounts.Join("vm:a", 8 * kMib);
  const auto other = accounts.Join("vm:b", 0);
  ASSERT_TRUE(first.ok() && second.ok() && other.ok());
  EXPECT_EQ(first.value().descriptor, second.value().descriptor);
  EXPECT_NE(first.value().descriptor, other.value().descriptor);
  EXPECT_NE(first.value().cell, second.value().cell);
  std::string error;
  AccountPage* page = MapAccountPage(first.value().descriptor, &error);  // as a worker
  ASSERT_NE(page, nullptr) << error;
  const int place = page->PlaceOf(kGpu);
  EXPECT_TRUE(page->Take(first.value().cell, MemoryKind::kDevice, place, 5 * kMib));
  EXPECT_FALSE(page->Take(second.value().cell, MemoryKind::kDevice, place, 5 * kMib));
  page->CountRefusal(second.value().cell);
  EXPECT_EQ(accounts.Held(first.value())[0], 5 * kMib);
  EXPECT_EQ(accounts.Status().size(), 2u);
  EXPECT_EQ(accounts.Status()[0].bytes[0], 5 * kMib);
  EXPECT_EQ(accounts.Status()[0].refused, 1u);
  accounts.Leave(first.value());
  EXPECT_TRUE(page->Take(second.value().cell, MemoryKind::kDevice, place, 5 * kMib));
  accounts.Leave(second.value());
  accounts.Leave(other.value());
  EXPECT_TRUE(accounts.Status().empty());
  munmap(page, sizeof(AccountPage));
}

}  // namespace
}  // namespace causeway
