// SPDX-License-Identifier: Apache-2.0
// The thread that looks, while there is a session to look at.
#include "host_backend/idle_watch.h"

#include <sys/prctl.h>
#include <time.h>

#include <utility>

namespace causeway::daemon {
namespace {

// What the first call after a pause waits for at the most. 2000 looks a second cost about a hundredth of a
// processor, however many sessions sleep.
constexpr timespec kPause{0, 500'000};

}  // namespace

IdleWatch::~IdleWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void IdleWatch::Add(std::shared_ptr<Region> region, uint32_t slot) {
  const std::lock_guard lock(mutex_);
  watched_.push_back({std::move(region), slot});
  if (!thread_.joinable()) thread_ = std::thread([this] { Watch(); });
  changed_.notify_all();
}

void IdleWatch::Remove(const Region& region, uint32_t slot) {
  const std::lock_guard lock(mutex_);
  std::erase_if(watched_, [&](const Watched& watched) {
    return watched.region.get() == &region && watched.slot == slot;
  });
}

void IdleWatch::Watch() {
  prctl(PR_SET_TIMERSLACK, 1000);  // ns, of this thread
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !watched_.empty(); });
    if (stop_) return;
    for (const Watched& watched : watched_) watched.region->WakeSleepers(watched.slot);
    lock.unlock();
    nanosleep(&kPause, nullptr);
    lock.lock();
  }
}

}  // namespace causeway::daemon
