// SPDX-License-Identifier: Apache-2.0
// The helpers of copies.
#include "guest_lib/copy_jobs.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "guest_lib/own_thread.h"

namespace causeway::guest {
namespace {

constexpr uint32_t kMostThreads = 16;
constexpr uint32_t kSpins = 1000;  // some 30 µs: the next unit of a running copy comes sooner

uint32_t CountThreads() {
  if (const char* text = getenv("CAUSEWAY_COPY_THREADS"); text != nullptr && *text != '\0')
    return static_cast<uint32_t>(std::clamp(atoi(text), 1, static_cast<int>(kMostThreads)));
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return 1;
  const int processors = CPU_COUNT(&usable);
  return processors >= 8 ? 4 : processors >= 4 ? 2 : 1;
}

}  // namespace

uint32_t CopyJobThreads() {
  static const uint32_t count = CountThreads();
  return count;
}

// Never destroyed: its threads run until the process is gone. A forked child has none of them, and no session
// either for which it could copy.
class CopyHelpers {
 public:
  static CopyHelpers& Get() {
    static auto* threads = new CopyHelpers;
    return *threads;
  }

  void Add(CopyJob* job) {
    const std::lock_guard lock(mutex_);
    while (started_ + 1 < CopyJobThreads() && StartOwnThread(Main, false) == 0) ++started_;
    if (started_ > 0) jobs_.push_back(job);
  }

  void Remove(CopyJob* job) {
    for (;; sched_yield()) {
      const std::lock_guard lock(mutex_);
      std::erase(jobs_, job);
      if (job->inside_ == 0) return;
    }
  }

  // After units were offered. Both counters are sequentially consistent: either we see the sleeper, or it
  // sees the units in its last look (Next).
  void Wake(uint32_t units) {
    offers_.fetch_add(1);
    if (sleepers_.load() == 0) return;
    const std::lock_guard lock(mutex_);
    for (uint32_t i = 0; i < std::min(units, kMostThreads); ++i) wake_.notify_one();
  }

 private:
  static void* Main(void*) {
    pthread_setname_np(pthread_self(), "causeway-copy");
    CopyHelpers& threads = Get();
    for (CopyJob* last = nullptr;;) {
      CopyJob* job = threads.Next(last);
      job->CopyOne();
      last = job;
    }
  }

  // The next job that has units, after leaving `last`.
  CopyJob* Next(CopyJob* last) {
    std::unique_lock lock(mutex_);
    if (last != nullptr) --last->inside_;
    for (;;) {
      const uint64_t seen = offers_.load();
      if (CopyJob* job = Pick()) return job;
      lock.unlock();
      for (uint32_t i = 0; i < kSpins && offers_.load(std::memory_order_relaxed) == seen; ++i) _mm_pause();
      lock.lock();
      if (offers_.load() != seen) continue;
      sleepers_.fetch_add(1);
      if (offers_.load() == seen) wake_.wait(lock);
      sleepers_.fetch_sub(1);
    }
  }

  CopyJob* Pick() {
    for (size_t i = 0; i < jobs_.size(); ++i) {
      CopyJob* job = jobs_[++turn_ % jobs_.size()];
      if (!job->HasUnits() || job->inside_ >= job->helpers_) continue;
      ++job->inside_;
      return job;
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<CopyJob*> jobs_;
  size_t turn_ = 0;
  uint32_t started_ = 0;
  std::atomic<uint64_t> offers_{0};
  std::atomic<uint32_t> sleepers_{0};
};

void CopyJob::Join(uint32_t helpers) {
  helpers_ = std::min(helpers, CopyJobThreads() - 1);
  joined_ = helpers_ > 0;
  if (joined_) CopyHelpers::Get().Add(this);
}

void CopyJob::Leave() {
  uint64_t taken = taken_.load(std::memory_order_relaxed);
  while (taken < offered_.load(std::memory_order_relaxed) &&
         !taken_.compare_exchange_weak(taken, offered_.load(std::memory_order_relaxed))) {
  }
  if (joined_) CopyHelpers::Get().Remove(this);
  joined_ = false;
}

void CopyJob::Offer(uint64_t end) {
  const uint64_t units = end - offered_.load(std::memory_order_relaxed);
  offered_.store(end, std::memory_order_release);  // partner: CopyOne
  // A single unit is the owner's: it would be done before a helper is awake.
  if (joined_ && units > 1) CopyHelpers::Get().Wake(static_cast<uint32_t>(units - 1));
}

bool CopyJob::CopyOne() {
  uint64_t unit = taken_.load(std::memory_order_relaxed);
  do {
    if (unit >= offered_.load(std::memory_order_acquire)) return false;  // partner: Offer
  } while (!taken_.compare_exchange_weak(unit, unit + 1, std::memory_order_relaxed));
  CopyUnit(unit);
  return true;
}

}  // namespace causeway::guest
