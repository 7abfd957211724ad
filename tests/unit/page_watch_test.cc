// SPDX-License-Identifier: Apache-2.0
// Both ways in which touches of managed memory are held up (guest_lib/page_watch/page_watch.h), with a thread
// that serves them as the library's does.
#include "guest_lib/page_watch/page_watch.h"
#include "tests/yield_until.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace causeway::guest {
namespace {

constexpr uint64_t kPage = 4096, kPages = 64;

// What the serving thread does with a fault; in the way of signals it is done in the thread that faults.
std::function<bool(const PageFault&)>* on_fault = nullptr;
std::mutex faults_mutex;
bool Claim(const PageFault& fault) {
  const std::lock_guard lock(faults_mutex);
  return (*on_fault)(fault);
}

enum class Way { kSignals, kUserfaultfd, kUserfaultfdWithoutWrites };

class PageWatchTest : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    watch_.reset(GetParam() == Way::kSignals ? MakeSignalsWatch()
                                             : MakeUserfaultfdWatch(GetParam() == Way::kUserfaultfd));
    if (watch_ == nullptr) GTEST_SKIP() << "this process may not use userfaultfd";
    const int file = memfd_create("page_watch_test", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(file, kPages * kPage), 0);
    void* alias = mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void* pages = mmap(nullptr, kPages * kPage, PROT_NONE, MAP_SHARED, file, 0);
    close(file);
    ASSERT_NE(alias, MAP_FAILED);
    ASSERT_NE(pages, MAP_FAILED);
    pages_ = static_cast<std::byte*>(pages);
    alias_ = static_cast<std::byte*>(alias);
    on_fault = &serve_;
    watch_->Arm(Claim);
    if (GetParam() != Way::kSignals) server_ = std::thread([this] { Serve(); });
  }
  void TearDown() override {
    if (server_.joinable()) {
      ending_ = true;
      watch_->Ring();
      server_.join();
    }
    if (pages_ == nullptr) return;
    munmap(pages_, kPages * kPage);
    munmap(alias_, kPages * kPage);
  }
  void Serve() {
    while (!ending_) {
      PageFault faults[4];
      const size_t count = watch_->TakeFaults(faults, 4);
      for (size_t i = 0; i < count; ++i) {
        if (!Claim(faults[i])) watch_->TryAgain(faults[i].address, faults[i].address + kPage);
      }
      if (count == 0) watch_->Wait(-1);
    }
  }
  WatchedPages Pages(uint64_t first, uint64_t count) const {
    const auto begin = reinterpret_cast<uint64_t>(pages_) + first * kPage;
    return {begin, begin + count * kPage, alias_ + first * kPage};
  }
  uint64_t PageOf(const PageFault& fault) const {
    return (fault.address - reinterpret_cast<uint64_t>(pages_)) / kPage;
  }
  volatile uint8_t& At(uint64_t page) { return reinterpret_cast<volatile uint8_t*>(pages_)[page * kPage]; }
  uint8_t& AliasAt(uint64_t page) { return reinterpret_cast<uint8_t*>(alias_)[page * kPage]; }
  static void Forbid(PageWatch& watch, const WatchedPages& pages) {
    watch.Set(pages, Access::kFree, Access::kNone);
  }

  std::unique_ptr<PageWatch> watch_;
  std::byte *pages_ = nullptr, *alias_ = nullptr;
  std::function<bool(const PageFault&)> serve_ = [](const PageFault&) { return false; };
  std::thread server_;
  std::atomic<bool> ending_{false};
};

TEST_P(PageWatchTest, WhatWasWrittenIsInTheFileAndComesBack) {
  std::atomic<int> faults{0};
  serve_ = [&](const PageFault& fault) {
    ++faults;
    const uint64_t page = PageOf(fault);
    AliasAt(page) += 100;
    watch_->Set(Pages(page, 1), Access::kNone, Access::kWrite);
    return true;
  };
  watch_->Set(Pages(0, kPages), Access::kAbsent, Access::kFree);
  for (uint64_t i = 0; i < kPages; i += 2) At(i) = static_cast<uint8_t>(i);
  EXPECT_EQ(faults, 0);
  Forbid(*watch_, Pages(0, kPages));
  for (uint64_t i = 0; i < kPages; i += 2) EXPECT_EQ(AliasAt(i), i);
  EXPECT_EQ(At(4), 104);
  EXPECT_EQ(At(5), 100);  // was a hole
  At(4) = 7;
  EXPECT_EQ(faults, 2);
  watch_->Set(Pages(0, kPages), Access::kWrite, Access::kNone);
  EXPECT_EQ(AliasAt(4), 7);
  EXPECT_EQ(At(4), 107);
  EXPECT_EQ(faults, 3);
}

TEST_P(PageWatchTest, FirstWritesAreNoticed) {
  if (!watch_->notices_writes()) GTEST_SKIP() << "writes are not told from reads";
  std::vector<bool> writes;
  serve_ = [&](const PageFault& fault) {
    writes.push_back(fault.write);
    watch_->Set(Pages(0, 8), writes.size() == 1 ? Access::kNone : Access::kRead,
                fault.write ? Access::kWrite : Access::kRead);
    return true;
  };
  watch_->Set(Pages(0, kPages), Access::kAbsent, Access::kNone);
  EXPECT_EQ(At(3), 0);
  EXPECT_EQ(At(4), 0);
  ASSERT_EQ(writes.size(), 1u);
  EXPECT_FALSE(writes[0]);
  At(4) = 1;
  At(3) = 1;
  ASSERT_EQ(writes.size(), 2u);
  EXPECT_TRUE(writes[1]);
  EXPECT_EQ(AliasAt(3), 1);
}

TEST_P(PageWatchTest, SystemCalls) {
  serve_ = [&](const PageFault& fault) {
    const uint64_t page = PageOf(fault);
    AliasAt(page) = 9;
    watch_->Set(Pages(page, 1), Access::kNone, Access::kWrite);
    return true;
  };
  watch_->Set(Pages(0, kPages), Access::kAbsent, Access::kNone);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const ssize_t written = write(ends[1], pages_, 3 * kPage);
  if (watch_->serves_system_calls()) {
    EXPECT_EQ(written, ssize_t{3 * kPage});
    EXPECT_EQ(read(ends[0], pages_ + 10 * kPage, 3 * kPage), ssize_t{3 * kPage});
    EXPECT_EQ(AliasAt(12), 9);
  } else {
    EXPECT_EQ(written, -1);
    EXPECT_EQ(errno, EFAULT);
  }
  close(ends[0]);
  close(ends[1]);
}

TEST_P(PageWatchTest, ThreadsWaitForOnePageAndForManyAtOnce) {
  serve_ = [&](const PageFault& fault) {
    const uint64_t first = PageOf(fault) / 16 * 16;  // whole groups: others' faults may lie in them
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    watch_->Set(Pages(first, 16), Access::kNone, Access::kWrite);
    return true;
  };
  for (int round = 0; round < 5; ++round) {
    if (round == 0) watch_->Set(Pages(0, kPages), Access::kAbsent, Access::kFree);
    Forbid(*watch_, Pages(0, kPages));
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 16; ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t i = 0; i < 4; ++i) At((t * 4 + i * 16 + t / 4) % kPages) = 1;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// Whoever waits there finds what took the pages' place.
TEST_P(PageWatchTest, PagesThatGo) {
  if (GetParam() == Way::kSignals) GTEST_SKIP() << "the handler passes the fault on, and the process ends";
  std::atomic<bool> taken{false};
  serve_ = [&](const PageFault&) {
    taken = true;
    return true;  // and nothing was done: it goes on waiting
  };
  watch_->Set(Pages(0, kPages), Access::kAbsent, Access::kNone);
  std::atomic<int> seen{-1};
  std::thread thread([&] { seen = At(2); });
  test::YieldUntil([&] { return taken.load(); });
  ASSERT_NE(
      mmap(pages_, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
      MAP_FAILED);
  watch_->TryAgain(Pages(0, kPages).begin, Pages(0, kPages).end);
  thread.join();
  EXPECT_EQ(seen, 0);
}

TEST_P(PageWatchTest, AbsentPagesFaultAsEver) {
  serve_ = [](const PageFault&) { return false; };
  watch_->Set(Pages(0, kPages), Access::kAbsent, Access::kNone);
  watch_->Set(Pages(4, 4), Access::kNone, Access::kAbsent);
  EXPECT_EXIT(
      {
        signal(SIGSEGV, SIG_DFL);
        At(5) = 1;
      },
      testing::KilledBySignal(SIGSEGV), "");
  watch_->Set(Pages(4, 4), Access::kAbsent, Access::kNone);
  serve_ = [&](const PageFault& fault) {
    watch_->Set(Pages(PageOf(fault), 1), Access::kNone, Access::kWrite);
    return true;
  };
  At(5) = 1;
  EXPECT_EQ(AliasAt(5), 1);
}

INSTANTIATE_TEST_SUITE_P(Ways, PageWatchTest,
                         testing::Values(Way::kSignals, Way::kUserfaultfd, Way::kUserfaultfdWithoutWrites),
                         [](const auto& way) {
                           return way.param == Way::kSignals       ? "signals"
                                  : way.param == Way::kUserfaultfd ? "userfaultfd"
                                                                   : "userfaultfd_without_writes";
                         });

}  // namespace
}  // namespace causeway::guest
