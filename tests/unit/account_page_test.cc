// SPDX-License-Identifier: Apache-2.0
// The page that workers of one VM count on: exact after millions of operations, never over the limit, and
// nothing left by a worker that was killed anywhere.
#include "host_backend/common/shares/account_page.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "host_backend/daemon/scopes/accounts.h"

namespace causeway {
namespace {

constexpr uint64_t kMib = 1u << 20;
constexpr char kGpu[] = "0123456789abcde";  // 16 bytes with its end

class AccountPageTest : public ::testing::Test {
 protected:
  AccountPageTest()
      : page_(static_cast<AccountPage*>(
            mmap(nullptr, sizeof(AccountPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    for (uint32_t cell = 0; cell < 8; ++cell) place_ = page_->PlaceOf(cell, kGpu);
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
  EXPECT_EQ(page_->PlaceOf(0, kGpu), place_);
  char other[16] = {};
  for (uint32_t i = 1; i < kAccountDevices; ++i) {
    other[3] = static_cast<char>(i);
    EXPECT_EQ(page_->PlaceOf(0, other), static_cast<int>(i));
  }
  other[3] = 99;
  EXPECT_EQ(page_->PlaceOf(0, other), kNoDevice);
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
      EXPECT_LE(page_->OnDevice(0, place_), 64 * kMib);
      usleep(50);
    }
  });
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i)
    threads.emplace_back([=, this] { Work(i / 2, kOperations, i + 1); });
  for (auto& thread : threads) thread.join();
  stop = true;
  watcher.join();
  EXPECT_EQ(page_->OnDevice(0, place_), 0u);
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
    page_->PlaceOf(1, kGpu);
    EXPECT_EQ(page_->OnDevice(0, place_), 0u);
    EXPECT_EQ(Sum(), 0u);
    ASSERT_TRUE(page_->Take(0, MemoryKind::kDevice, place_, 64 * kMib)) << "round " << round;
    page_->Return(0, MemoryKind::kDevice, place_, 64 * kMib);
  }
}

TEST(AccountsTest, SeatsAreTakenAndGivenBack) {
  daemon::Accounts accounts;
  const auto first = accounts.Join({"vm:a", "vm:a"}, 8 * kMib),
             second = accounts.Join({"vm:a", "vm:a"}, 8 * kMib);
  const auto other = accounts.Join({"vm:b", "vm:b"}, 0);
  ASSERT_TRUE(first.ok() && second.ok() && other.ok());
  EXPECT_EQ(first.value().descriptor, second.value().descriptor);
  EXPECT_NE(first.value().descriptor, other.value().descriptor);
  EXPECT_NE(first.value().cell, second.value().cell);
  const auto map = [](const daemon::Accounts::Seat& seat) {  // as its worker
    std::string error;
    AccountPage* page = MapAccountPage(seat.descriptor, seat.reading, seat.cell, &error);
    EXPECT_NE(page, nullptr) << error;
    return page;
  };
  AccountPage* one = map(first.value());
  AccountPage* two = map(second.value());
  const uint32_t one_cell = first.value().cell, two_cell = second.value().cell;
  const int place = one->PlaceOf(one_cell, kGpu);
  two->PlaceOf(two_cell, "another GPU....");
  const int other_place = two->PlaceOf(two_cell, kGpu);
  EXPECT_NE(place, other_place) << "each has places of its own";
  EXPECT_TRUE(one->Take(one_cell, MemoryKind::kDevice, place, 5 * kMib));
  EXPECT_FALSE(two->Take(two_cell, MemoryKind::kDevice, other_place, 5 * kMib));
  two->CountRefusal(two_cell);
  EXPECT_EQ(accounts.Held(first.value())[0], 5 * kMib);
  EXPECT_EQ(accounts.Status().size(), 2u);
  EXPECT_EQ(accounts.Status()[0].bytes[0], 5 * kMib);
  EXPECT_EQ(accounts.Status()[0].refused, 1u);
  accounts.Leave(first.value());
  EXPECT_TRUE(two->Take(two_cell, MemoryKind::kDevice, other_place, 5 * kMib));
  accounts.Leave(second.value());
  accounts.Leave(other.value());
  EXPECT_TRUE(accounts.Status().empty());
  munmap(one, sizeof(AccountPage));
  munmap(two, sizeof(AccountPage));
}

// What a taken worker writes into its cell, which is all that it can write.
// A worker that was taken over has the page's descriptor; and a newer daemon's page, which its workers have mapped, is longer.
TEST(AccountsTest, APageNeverGetsShorter) {
  daemon::Accounts accounts;
  const auto seat = accounts.Join({"vm:one", "vm:one"}, 0);
  ASSERT_TRUE(seat.ok());
  const int descriptor = seat.value().descriptor;
  EXPECT_EQ(ftruncate(descriptor, 4096), -1);
  constexpr off_t kLonger = sizeof(AccountPage) + 4096;
  ASSERT_EQ(ftruncate(descriptor, kLonger), 0);
  EXPECT_TRUE(daemon::HasWholePage(descriptor));
  struct stat info {};
  ASSERT_EQ(fstat(descriptor, &info), 0);
  EXPECT_EQ(info.st_size, kLonger);
  accounts.Leave(seat.value());
}

TEST(AccountsTest, ACellSaysNothingOfOthers) {
  constexpr uint64_t kLimit = 8 * kMib;
  daemon::Accounts accounts;
  const auto honest = accounts.Join({"vm:a", "vm:a"}, kLimit),
             taken = accounts.Join({"vm:a", "vm:a"}, kLimit);
  const auto other = accounts.Join({"vm:b", "vm:b"}, kLimit);
  std::string error;
  AccountPage* own =
      MapAccountPage(taken.value().descriptor, taken.value().reading, taken.value().cell, &error);
  AccountPage* sibling =
      MapAccountPage(honest.value().descriptor, honest.value().reading, honest.value().cell, &error);
  const uint32_t cell = honest.value().cell;
  const int place = sibling->PlaceOf(cell, kGpu);
  ASSERT_TRUE(sibling->Take(cell, MemoryKind::kDevice, place, kMib));
  const size_t own_at = (1 + taken.value().cell) * kAccountPageBytes;
  for (size_t at = 0; at < 8 * kAccountPageBytes; at += kAccountPageBytes) {
    char* page = reinterpret_cast<char*>(own) + at;
    EXPECT_EQ(mprotect(page, kAccountPageBytes, PROT_READ | PROT_WRITE) == 0, at == own_at) << at;
  }
  for (const int value : {0x00, 0x7f, 0x80, 0xff}) {
    std::memset(static_cast<void*>(reinterpret_cast<char*>(own) + own_at), value, kAccountPageBytes);
    own->PlaceOf(taken.value().cell, kGpu);
    const daemon::AccountStatus status = accounts.Status()[0];
    EXPECT_GE(status.bytes[0], kMib);
    EXPECT_LE(status.bytes[0], kMib + kMostOfCell);
    EXPECT_LE(status.gpu_bytes, kMib + kAccountDevices * kMostOfCell);
    EXPECT_EQ(status.limit_bytes, kLimit);
    EXPECT_EQ(sibling->limit_bytes(), kLimit);
    EXPECT_EQ(accounts.Held(honest.value())[0], kMib);
    EXPECT_EQ(accounts.Status()[1].gpu_bytes, 0u) << "another scope";
  }
  // It claims all that is left: others get what they would if it held that.
  std::memset(static_cast<void*>(reinterpret_cast<char*>(own) + own_at), 0, kAccountPageBytes);
  const int its_place = own->PlaceOf(taken.value().cell, kGpu);
  EXPECT_TRUE(own->Take(taken.value().cell, MemoryKind::kDevice, its_place, 7 * kMib));
  EXPECT_FALSE(sibling->Take(cell, MemoryKind::kDevice, place, 1));
  own->Return(taken.value().cell, MemoryKind::kDevice, its_place, 7 * kMib);
  EXPECT_TRUE(sibling->Take(cell, MemoryKind::kDevice, place, 7 * kMib));
  munmap(own, sizeof(AccountPage));
  munmap(sibling, sizeof(AccountPage));
}

// Daemons of the first release made pages without turn cells. A worker of this release accepts such pages, and a daemon of this
// release that takes them over makes them longer.
TEST(Account, PagesOfAnEarlierRelease) {
  const int pages = memfd_create("account", MFD_CLOEXEC);
  std::string error;
  ASSERT_EQ(ftruncate(pages, kFirstAccountBytes - 1), 0);
  EXPECT_EQ(MapAccountPage(pages, pages, 0, &error), nullptr) << "less than the first release made";
  ASSERT_EQ(ftruncate(pages, kFirstAccountBytes), 0);
  AccountPage* worker = MapAccountPage(pages, pages, kAccountCells - 1, &error);
  ASSERT_NE(worker, nullptr) << error;
  worker->turn_cell(kAccountCells - 1).turns[0].submitted.store(7);
  EXPECT_EQ(worker->turn_cell(0).turns[0].submitted.load(), 0u) << "what is not there reads as nothing";
  EXPECT_EQ(worker->GrantOn(DeviceHash(reinterpret_cast<const unsigned char*>(kGpu))), nullptr)
      << "and nobody takes turns";
  AccountPage* daemon = MapAccountPage(pages, &error);
  ASSERT_NE(daemon, nullptr) << error;
  daemon->Open(kAccountCells - 1);
  daemon->Close(kAccountCells - 1);  // writes to the last byte of the last turn cell
  munmap(worker, sizeof(AccountPage));
  munmap(daemon, sizeof(AccountPage));
  close(pages);
}

}  // namespace
}  // namespace causeway
