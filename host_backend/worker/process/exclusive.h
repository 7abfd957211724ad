// SPDX-License-Identifier: Apache-2.0
// Objects that the driver lets one thread use at a time: graphs with all that is in them, executable graphs,
// links. A request takes all that it names at once, and gives them back when it is executed; so no two wait
// for each other. What a correct program does never waits here: it serialises such calls by itself.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <span>
#include <vector>

#include "ivshmem_ring/protocol/handle.h"

namespace causeway::host {

class ExclusiveUses {
 public:
  // Waits until no other request has any of them. False: stopped, and nothing was taken.
  bool Take(std::span<const WireHandle> wires) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || AreFree(wires); });
    if (stopped_) return false;
    taken_.insert(taken_.end(), wires.begin(), wires.end());
    return true;
  }
  // False: another request has it.
  bool TryTake(WireHandle wire) {
    const std::lock_guard lock(mutex_);
    if (!AreFree({&wire, 1})) return false;
    taken_.push_back(wire);
    return true;
  }
  void Return(std::span<const WireHandle> wires) {
    {
      const std::lock_guard lock(mutex_);
      for (const WireHandle wire : wires) taken_.erase(std::find(taken_.begin(), taken_.end(), wire));
    }
    changed_.notify_all();
  }
  // Ends every wait, now and later.
  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
  }

 private:
  bool AreFree(std::span<const WireHandle> wires) const {
    return std::find_first_of(taken_.begin(), taken_.end(), wires.begin(), wires.end()) == taken_.end();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<WireHandle> taken_;  // a few: as many as threads are in such calls
  bool stopped_ = false;
};

}  // namespace causeway::host
