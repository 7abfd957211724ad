// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/process/copy_threads.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xmmintrin.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/process/own_thread.h"
#include "ivshmem_ring/transport/flight_recorder.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway::guest {
namespace {

constexpr uint32_t kMaxThreads = 8;            // enough for the memory's bandwidth
constexpr uint64_t kPartBytes = 512u << 10;    // what one thread copies at a time
constexpr uint64_t kAloneBytes = 1024u << 10;  // up to here waking others takes longer than it saves
thread_local uint32_t thread_number = 0;
constexpr uint32_t kSpins = 1000;  // some 30 µs: the next part of a copy through the device comes sooner

uint32_t AskedThreads() {
  const char* text = getenv("CAUSEWAY_COPY_THREADS");
  return text != nullptr && *text != '\0' ? static_cast<uint32_t>(std::clamp(atoi(text), 1, 16)) : 0;
}

}  // namespace

uint32_t CopyThreadNumber() {
  return thread_number;
}

uint32_t CopyThreadCount() {
  static const uint32_t asked = AskedThreads();
  static const uint32_t count = asked != 0 ? asked : std::min(KnownProcessors(), kMaxThreads);
  return count;
}

uint32_t PipelineThreadCount() {
  static const uint32_t count = AskedThreads() != 0      ? AskedThreads()
                                : KnownProcessors() >= 8 ? 3
                                : KnownProcessors() >= 4 ? 2
                                                         : 1;
  return count;
}

uint32_t MostPipelineThreads() {
  const uint32_t most = std::min(KnownProcessors() / 4, CopyThreadCount());
  return AskedThreads() != 0 ? AskedThreads() : std::max(most, PipelineThreadCount());
}

// The threads. Never destroyed: they run until the process is gone.
class CopyThreads {
 public:
  static CopyThreads& Get() { return *the_threads; }

  void Add(CopyJob* job) {
    {
      const auto lock = LockJobs();
      if (!tried_) Start();
      jobs_.push_back(job);
      job_count_.store(jobs_.size(), std::memory_order_relaxed);
    }
    WakeOne();  // and it the next: they are up by the time the first parts are there
  }

  void Remove(CopyJob* job) {
    job->leaving_.store(true, std::memory_order_relaxed);
    {
      const auto lock = LockJobs();
      std::erase(jobs_, job);
      job_count_.store(jobs_.size(), std::memory_order_relaxed);
    }
    // Often a helper has done its part and is about to say so.
    for (uint32_t i = 0; i < kSpins && job->inside_.load(std::memory_order_acquire) != 0; ++i) _mm_pause();
    if (job->inside_.load(std::memory_order_acquire) != 0) {
      auto lock = LockJobs();
      job->owner_sleeps_ = true;
      left_.wait(lock, [&] { return job->inside_.load(std::memory_order_acquire) == 0; });
      job->owner_sleeps_ = false;
    }
    job->leaving_.store(false, std::memory_order_relaxed);
  }

  // After parts were offered. Both counters are sequentially consistent: either we see the sleeper, or it
  // sees the parts in its last look (Next).
  void Wake() {
    offers_.fetch_add(1);
    WakeOne();
  }

 private:
  // Sleeping for so short a lock would take longer than what it guards.
  std::unique_lock<Mutex<Lock::kCopyThreads>> LockJobs() {
    for (uint32_t i = 0; i < kSpins / 10; ++i) {
      if (mutex_.try_lock()) return std::unique_lock(mutex_, std::adopt_lock);
      _mm_pause();
    }
    return std::unique_lock(mutex_);
  }
  // Waking a thread costs some microseconds: one at a time, and each wakes the next.
  void WakeOne() {
    if (sleepers_.load() == 0 || waking_.exchange(true)) return;
    // Not while a sleeper is between its last look and its sleep, which it does with the lock. Without it:
    // whoever wakes up wants it.
    { const auto lock = LockJobs(); }
    wake_.notify_one();
  }
  // With the lock.
  bool WantsMore() const {
    uint32_t wanted = 0;
    for (const CopyJob* job : jobs_) wanted += job->helpers();
    return wanted > started_.load(std::memory_order_relaxed) - sleepers_.load();
  }
  // Threads that cannot be started are done without.
  void Start() {
    tried_ = true;
    // The child has none of the threads, and what they held at the fork stays as it was.
    static const int at_fork = pthread_atfork(nullptr, nullptr, [] { the_threads = new CopyThreads; });
    (void)at_fork;
    for (uint32_t i = 1; i < CopyThreadCount() && StartOwnThread(Main, false) == 0; ++i) {
    }
  }

  static void* Main(void*) {
    pthread_setname_np(pthread_self(), "causeway-copy");
    CopyThreads& threads = Get();
    thread_number = threads.started_.fetch_add(1, std::memory_order_relaxed) + 1;
    for (CopyJob* last = nullptr;;) {
      last = threads.Next(last);
      threads.Help(*last);
    }
  }

  // Part after part, until none comes any more, or another job wants its turn, or there are too many.
  void Help(CopyJob& job) {
    uint64_t idle_since = 0;
    const auto note_idle = [&] {
      if (idle_since != 0) job.idle_ticks_.fetch_add(FlightTicks() - idle_since, std::memory_order_relaxed);
      idle_since = 0;
    };
    for (uint32_t idle = 0; idle < kSpins && !job.leaving_.load(std::memory_order_relaxed);) {
      if (!job.HasParts() || !job.DoOne()) {
        if (job.surplus_.load(std::memory_order_relaxed) && job.surplus_.exchange(false)) break;
        if (idle++ == 0) idle_since = FlightTicks();
        _mm_pause();
        continue;
      }
      note_idle();
      if (job_count_.load(std::memory_order_relaxed) > 1) return;
      idle = 0;
    }
    note_idle();
  }

  // The next job that has parts, after leaving `last`.
  CopyJob* Next(CopyJob* last) {
    auto lock = LockJobs();
    if (last != nullptr) {
      const bool awaited = last->owner_sleeps_;
      // partner: Remove; from here on the job may be gone
      if (last->inside_.fetch_sub(1, std::memory_order_release) == 1 && awaited) left_.notify_all();
    }
    for (;;) {
      const uint64_t seen = offers_.load();
      if (CopyJob* job = Pick()) return job;
      lock.unlock();
      for (uint32_t i = 0; i < kSpins && offers_.load(std::memory_order_relaxed) == seen; ++i) _mm_pause();
      lock = LockJobs();
      if (offers_.load() != seen) continue;
      sleepers_.fetch_add(1);
      waking_ = false;
      if (offers_.load() == seen) wake_.wait(lock);
      waking_ = false;
      sleepers_.fetch_sub(1);
      if (!WantsMore()) continue;
      lock.unlock();
      WakeOne();
      lock = LockJobs();
    }
  }

  CopyJob* Pick() {
    for (size_t i = 0; i < jobs_.size(); ++i) {
      CopyJob* job = jobs_[++turn_ % jobs_.size()];
      if (!job->HasParts() || job->inside_.load(std::memory_order_relaxed) >= job->helpers_) continue;
      job->inside_.fetch_add(1, std::memory_order_relaxed);
      return job;
    }
    return nullptr;
  }

  static CopyThreads* the_threads;
  Mutex<Lock::kCopyThreads> mutex_;
  ConditionVariable wake_, left_;
  std::vector<CopyJob*> jobs_;
  std::atomic<size_t> job_count_{0};  // for who has no lock
  size_t turn_ = 0;
  bool tried_ = false;
  std::atomic<uint32_t> started_{0};
  std::atomic<uint64_t> offers_{0};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> waking_{false};  // a sleeper is on its way
};
CopyThreads* CopyThreads::the_threads = new CopyThreads;

void CopyJob::Join(uint32_t helpers) {
  helpers_ = std::min(helpers, CopyThreadCount() - 1);
  joined_ = helpers_ > 0;
  if (joined_) CopyThreads::Get().Add(this);
}

void CopyJob::ChangeHelpers(uint32_t helpers) {
  const uint32_t before = helpers_.exchange(std::min(helpers, CopyThreadCount() - 1));
  if (!joined_) return;
  surplus_.store(helpers < before, std::memory_order_relaxed);
  if (helpers > before) CopyThreads::Get().Wake();
}

void CopyJob::Leave() {
  uint64_t taken = taken_.load(std::memory_order_relaxed);
  const uint64_t offered = offered_.load(std::memory_order_relaxed);
  while (taken < offered && !taken_.compare_exchange_weak(taken, offered)) {
  }
  if (joined_) CopyThreads::Get().Remove(this);
  joined_ = false;
}

void CopyJob::Offer(uint64_t end) {
  offered_.store(end, std::memory_order_release);  // partner: DoOne
  // A single part is the owner's: it would be done before a helper is awake.
  if (joined_ && end - taken_.load(std::memory_order_relaxed) > 1 &&
      inside_.load(std::memory_order_relaxed) < helpers_)
    CopyThreads::Get().Wake();
}

bool CopyJob::DoOne() {
  uint64_t part = taken_.load(std::memory_order_relaxed);
  do {
    if (part >= offered_.load(std::memory_order_acquire)) return false;  // partner: Offer
  } while (!taken_.compare_exchange_weak(part, part + 1, std::memory_order_relaxed));
  Do(part);
  return true;
}

namespace {

class Parts final : public CopyJob {
 public:
  Parts(void (*work)(void*, uint32_t), void* argument) : work_(work), argument_(argument) {}
  ~Parts() override { Leave(); }

 private:
  void Do(uint64_t part) override { work_(argument_, static_cast<uint32_t>(part)); }
  void (*const work_)(void*, uint32_t);
  void* const argument_;
};

struct Copy {
  std::byte* to;
  const std::byte* from;
  uint64_t bytes, part_bytes;
};

void CopyPart(void* argument, uint32_t index) {
  const Copy& copy = *static_cast<Copy*>(argument);
  const uint64_t at = index * copy.part_bytes;
  memcpy(copy.to + at, copy.from + at, std::min(copy.part_bytes, copy.bytes - at));
}

}  // namespace

void RunInParallel(uint32_t count, void (*work)(void*, uint32_t), void* argument, uint32_t most_helpers) {
  Parts parts(work, argument);
  if (count > 1) parts.Join(most_helpers);
  parts.Offer(count);
  while (parts.DoOne()) {
  }
  parts.Leave();  // after the helpers
}

void CopyInParts(void* to, const void* from, uint64_t bytes, uint64_t part_bytes, uint32_t most_helpers) {
  Copy copy{static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, part_bytes};
  RunInParallel(static_cast<uint32_t>((bytes + part_bytes - 1) / part_bytes), CopyPart, &copy, most_helpers);
}

void CopyInParallel(void* to, const void* from, uint64_t bytes) {
  if (bytes <= kAloneBytes || CopyThreadCount() == 1) {
    memcpy(to, from, bytes);
    return;
  }
  CopyInParts(to, from, bytes, kPartBytes, UINT32_MAX);
}

}  // namespace causeway::guest
