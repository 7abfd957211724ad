// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/connection/local_slices.h"

#include <fcntl.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "guest_lib/process/own_thread.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::guest {
namespace {

constexpr std::chrono::milliseconds kRound{250};  // idle slices live for one to two of these
constexpr uint64_t kGranulesAtOnce = 16;          // returned between two looks at the lock

}  // namespace

LocalSlices::LocalSlices(int fd, uint16_t* owners, uint64_t region_bytes)
    : fd_(fd), owners_(owners), states_(GranuleCount(region_bytes)), idle_since_(states_.size()) {
  for (uint32_t i = 0; i <= SlotCount(region_bytes); ++i)
    states_[i] = State::kUsed;  // granule 0 and the slots
}

LocalSlices::~LocalSlices() {
  std::unique_lock lock(mutex_);
  stop_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !started_; });
}

bool LocalSlices::Find(uint64_t granules, bool idle_only, uint64_t* first) const {
  uint64_t run = 0;
  for (uint64_t i = 0; i < states_.size(); ++i) {
    const bool fits = states_[i] == State::kIdle || (!idle_only && states_[i] == State::kFree);
    run = fits ? run + 1 : 0;
    if (run != granules) continue;
    *first = i + 1 - granules;
    return true;
  }
  return false;
}

bool LocalSlices::Allocate(uint64_t granules, uint64_t* first, bool* zeroed) {
  std::unique_lock lock(mutex_);
  while (!(idle_ >= granules && Find(granules, true, first)) && !Find(granules, false, first)) {
    if (returning_ == 0) return false;
    changed_.wait(lock);
  }
  *zeroed = true;
  for (uint64_t i = *first; i < *first + granules; ++i) {
    if (states_[i] == State::kIdle) {
      *zeroed = false;
      --idle_;
    }
    states_[i] = State::kUsed;
    std::atomic_ref<uint16_t>(owners_[i]).store(1, std::memory_order_release);  // slot 0
  }
  return true;
}

// The owner table says free at once: what the worker checks is that nothing lies there that is not lent.
void LocalSlices::Free(uint64_t first, uint64_t granules) {
  const std::lock_guard lock(mutex_);
  if (!started_) started_ = StartOwnThread(ThreadMain, false, this) == 0;
  for (uint64_t i = first; i < first + granules; ++i) {
    states_[i] = State::kIdle;
    idle_since_[i] = round_;
    std::atomic_ref<uint16_t>(owners_[i]).store(kOwnerFree, std::memory_order_release);
  }
  idle_ += granules;
  // Others wait for what is on the way.
  if (asleep_ || returning_ != 0) changed_.notify_all();
}

void* LocalSlices::ThreadMain(void* self) {
  auto& slices = *static_cast<LocalSlices*>(self);
  pthread_setname_np(pthread_self(), "causeway-slices");
  std::unique_lock lock(slices.mutex_);
  while (!slices.stop_) {
    slices.asleep_ = true;
    slices.changed_.wait(lock, [&] { return slices.idle_ != 0 || slices.stop_; });
    slices.asleep_ = false;
    slices.changed_.wait_for(lock, kRound, [&] { return slices.stop_; });
    ++slices.round_;
    lock.unlock();
    slices.ReturnIdle();
    lock.lock();
  }
  slices.started_ = false;
  slices.changed_.notify_all();
  return nullptr;
}

// Slices that were idle during a whole round.
void LocalSlices::ReturnIdle() {
  for (uint64_t at = 0; at < states_.size();) {
    uint64_t first = 0, count = 0;
    {
      const std::lock_guard lock(mutex_);
      for (; at < states_.size() && count < kGranulesAtOnce; ++at) {
        const bool old = states_[at] == State::kIdle && idle_since_[at] + 1 < round_;
        if (!old && count != 0) break;
        if (!old) continue;
        if (count++ == 0) first = at;
        states_[at] = State::kReturning;
      }
      idle_ -= count;
      returning_ += count;
    }
    if (count == 0) return;
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first * kGranuleBytes),
              static_cast<off_t>(count * kGranuleBytes));
    const std::lock_guard lock(mutex_);
    std::fill_n(states_.begin() + static_cast<std::ptrdiff_t>(first), count, State::kFree);
    returning_ -= count;
    changed_.notify_all();
  }
}

}  // namespace causeway::guest
