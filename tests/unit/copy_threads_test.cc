// SPDX-License-Identifier: Apache-2.0
// The guest library's copy threads: every part runs once, jobs of several callers do not wait for each other,
// a forked child works on.
#include "guest_lib/process/copy_threads.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include "guest_lib/process/copy_past_caches.h"
#include "tests/yield_until.h"

namespace causeway::guest {
namespace {

[[maybe_unused]] const int threads_asked_for = setenv("CAUSEWAY_COPY_THREADS", "4", 1);

TEST(CopyThreads, EveryPartRunsOnce) {
  for (const uint32_t count : {0u, 1u, 2u, 7u, 1000u}) {
    std::vector<std::atomic<int>> runs(count);
    RunInParallel(
        count,
        [](void* argument, uint32_t index) {
          (*static_cast<std::vector<std::atomic<int>>*>(argument))[index].fetch_add(1);
        },
        &runs);
    for (const auto& run : runs) EXPECT_EQ(run.load(), 1);
  }
}

TEST(CopyThreads, CopiesOfAnySize) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1} << 20, (size_t{5} << 20) + 13}) {
    std::vector<char> from(bytes + 1), to(bytes + 1, 'x');
    for (size_t i = 0; i < bytes; ++i) from[i] = static_cast<char>(i * 31 + i / 4096);
    CopyInParallel(to.data(), from.data(), bytes);
    EXPECT_EQ(std::memcmp(to.data(), from.data(), bytes), 0);
    EXPECT_EQ(to[bytes], 'x');
  }
}

TEST(CopyPastCaches, CopiesAllBytesAndNoOthers) {
  std::vector<std::byte> from(20'000), to(from.size());
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 31 + i / 4096);
  for (const size_t bytes : {0, 1, 63, 4095, 4096, 4097, 4096 + 63, 8192, 12'345}) {
    for (const size_t shift : {1, 17, 64, 100}) {
      std::ranges::fill(to, std::byte{'x'});
      CopyPastCaches(to.data() + shift, from.data() + 7, bytes);
      ASSERT_EQ(std::memcmp(to.data() + shift, from.data() + 7, bytes), 0) << bytes << " at " << shift;
      ASSERT_EQ(to[shift - 1], std::byte{'x'}) << bytes << " at " << shift;
      ASSERT_EQ(to[shift + bytes], std::byte{'x'}) << bytes << " at " << shift;
    }
  }
}

// A job that cannot end before another has begun and ended.
TEST(CopyThreads, JobsDoNotWaitForEachOther) {
  std::atomic<bool> other_done{false};
  std::thread first([&] {
    RunInParallel(
        2,
        [](void* argument, uint32_t) {
          test::SleepUntil([&] { return static_cast<std::atomic<bool>*>(argument)->load(); });
        },
        &other_done);
  });
  std::vector<char> from(8 << 20, 'a'), to(8 << 20);
  CopyInParallel(to.data(), from.data(), to.size());
  EXPECT_EQ(from, to);
  other_done.store(true);
  first.join();
}

// More jobs than helpers: these do parts of all in turns, so that none waits for the end of another.
TEST(CopyThreads, JobsShareTheirHelpers) {
  constexpr uint64_t kParts = 1'000'000'000, kCounted = 4000;  // never all of them
  class Job final : public CopyJob {
   public:
    ~Job() override { Leave(); }
    std::atomic<uint64_t> done{0};

   private:
    void Do(uint64_t) override { done.fetch_add(1); }
  } jobs[4];
  for (Job& job : jobs) {
    job.Join(3);
    job.Offer(kParts);
  }
  uint64_t before[4], by[4] = {}, all = 0;
  for (int i = 0; i < 4; ++i) before[i] = jobs[i].done;
  test::YieldUntil([&] {
    all = 0;
    for (int i = 0; i < 4; ++i) all += by[i] = jobs[i].done - before[i];
    return all >= kCounted;
  });
  for (int i = 0; i < 4; ++i) EXPECT_GT(by[i], all / 8) << "job " << i << " of " << all << " parts";
}

// Helpers come and go while parts are offered.
TEST(CopyThreads, AsManyHelpersAsAreWanted) {
  constexpr uint64_t kParts = 3000;
  class Counted final : public CopyJob {
   public:
    ~Counted() override { Leave(); }
    std::atomic<int> runs[kParts] = {};

   private:
    void Do(uint64_t part) override { runs[part].fetch_add(1); }
  } job;
  job.Join(2);
  for (uint64_t offered = 0; offered < kParts;) {
    job.Offer(offered += 10);
    if (offered % 300 == 0) job.ChangeHelpers(static_cast<uint32_t>(offered / 300 % 4));
    if (offered % 700 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (int i = 0; i < 5 && job.DoOne(); ++i) {
    }
  }
  while (job.DoOne()) {
  }
  job.Leave();
  for (const auto& runs : job.runs) ASSERT_EQ(runs.load(), 1);
}

TEST(CopyThreads, ChildrenHaveTheirOwn) {
  std::vector<char> from(8 << 20, 'a'), to(8 << 20);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    std::vector<char> more(8 << 20);
    while (!stop.load()) CopyInParallel(more.data(), from.data(), more.size());
  });
  for (int i = 0; i < 10; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      CopyInParallel(to.data(), from.data(), to.size());
      _exit(from == to ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop.store(true);
  busy.join();
}

}  // namespace
}  // namespace causeway::guest
