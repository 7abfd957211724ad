// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/host_register/pages_aside.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/process/own_thread.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::guest {
namespace {

constexpr uint64_t kWorthwhile = 1u << 20;

constexpr std::chrono::milliseconds kMoment{250};

// As much as is released between two looks at the lock: a part of a huge page would split it.
uint64_t FirstPart(const std::byte* pages, uint64_t bytes) {
  return std::min(bytes, kHugePageBytes - reinterpret_cast<uint64_t>(pages) % kHugePageBytes);
}

std::atomic<uint64_t> waiting{0};  // bytes

// Those that the kernel may not take yet, and the thread that allows it.
class Kept {
 public:
  void Add(std::byte* pages, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (!started_) started_ = StartOwnThread(ThreadMain, false, this) == 0;
    pages_[pages] = {bytes, std::chrono::steady_clock::now()};
    if (pages_.size() == 1) changed_.notify_one();
  }
  // When this returns they stay as they are.
  void Remove(std::byte* pages, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    std::byte* end = pages + bytes;
    auto at = pages_.upper_bound(pages);
    if (at != pages_.begin()) --at;
    while (at != pages_.end() && at->first < end) {
      std::byte* first = at->first;
      const Run run = at->second;
      ++at;
      if (first + run.bytes <= pages) continue;
      pages_.erase(first);
      if (first < pages) pages_[first] = {static_cast<uint64_t>(pages - first), run.since};
      if (first + run.bytes > end) pages_[end] = {static_cast<uint64_t>(first + run.bytes - end), run.since};
    }
  }

 private:
  struct Run {
    uint64_t bytes;
    std::chrono::steady_clock::time_point since;
  };

  static void* ThreadMain(void* self) {
    pthread_setname_np(pthread_self(), "causeway-aside");
    auto& kept = *static_cast<Kept*>(self);
    for (std::unique_lock lock(kept.mutex_);;) {
      kept.changed_.wait(lock, [&] { return !kept.pages_.empty(); });
      kept.changed_.wait_for(lock, kMoment);
      while (kept.ReleaseOne()) {
        lock.unlock();
        lock.lock();
      }
    }
  }

  // Needs the lock. False: none has waited for so long.
  bool ReleaseOne() {
    const auto now = std::chrono::steady_clock::now();
    const auto old = std::find_if(pages_.begin(), pages_.end(),
                                  [&](const auto& run) { return now - run.second.since >= kMoment; });
    if (old == pages_.end()) return false;
    const auto [pages, run] = *old;
    const uint64_t bytes = FirstPart(pages, run.bytes);
    pages_.erase(old);
    if (bytes < run.bytes) pages_[pages + bytes] = {run.bytes - bytes, run.since};
    madvise(pages, bytes, MADV_FREE);
    return true;
  }

  Mutex<Lock::kPagesAside> mutex_;
  ConditionVariable changed_;
  std::map<std::byte*, Run> pages_;
  bool started_ = false;
};
Kept& kept = *new Kept;  // never destroyed

uint64_t MostWaiting() {
  static const uint64_t bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 8;
  return bytes;
}

}  // namespace

std::byte* ReserveAside(const Mapping& mapping) {
  const uint64_t bytes = mapping.end - mapping.begin;
  if (mapping.shared || mapping.inode != 0 || bytes < kWorthwhile) return nullptr;
  if (waiting.fetch_add(bytes, std::memory_order_relaxed) + bytes <= MostWaiting()) {
    if (std::byte* aside = ReserveLike(mapping.begin, bytes)) return aside;
  }
  ForgetAside(bytes);
  return nullptr;
}

void KeepAside(std::byte* aside, uint64_t bytes) {
  if (madvise(aside, FirstPart(aside, bytes), MADV_FREE) == 0) {
    kept.Add(aside, bytes);
  } else {  // locked, for example
    mmap(aside, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
  madvise(aside, bytes, MADV_DONTFORK);
}

bool AreThere(std::byte* aside, uint64_t bytes) {
  unsigned char resident = 0;
  return mincore(aside + PageFloor(bytes / 2), kPageBytes, &resident) == 0 && (resident & 1) != 0;
}

void StopWaiting(std::byte* aside, uint64_t bytes) {
  kept.Remove(aside, bytes);
  madvise(aside, bytes, MADV_DOFORK);
}

bool WakeAside(std::byte* aside, uint64_t bytes) {
  StopWaiting(aside, bytes);
  return mprotect(aside, bytes, PROT_READ | PROT_WRITE) == 0;
}

void ForgetAside(uint64_t bytes) {
  waiting.fetch_sub(bytes, std::memory_order_relaxed);
}

void DropAside(std::byte* aside, uint64_t bytes) {
  kept.Remove(aside, bytes);
  munmap(aside, bytes);
  ForgetAside(bytes);
}

}  // namespace causeway::guest
