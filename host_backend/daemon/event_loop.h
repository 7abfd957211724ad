// SPDX-License-Identifier: Apache-2.0
// The daemon's only thread: descriptors, timers, and work put off until the current event has been handled.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "host_backend/daemon/lateness.h"
#include "host_backend/unique_fd.h"

namespace causeway::daemon {

using Clock = std::chrono::steady_clock;

class EventLoop {
 public:
  using WatchId = uint64_t;  // never reused; 0 is none
  using TimerId = uint64_t;

  EventLoop();

  // Calls `handler(epoll events)` when the descriptor is ready. The caller keeps the descriptor open until
  // Unwatch.
  WatchId Watch(int fd, uint32_t events, std::function<void(uint32_t)> handler);
  // The same of a descriptor that is somebody else's choice; 0: the kernel does not watch it.
  WatchId TryWatch(int fd, uint32_t events, std::function<void(uint32_t)> handler);
  // Safe inside any handler, also its own. Clears `id`; 0 is ignored.
  void Unwatch(WatchId& id);

  TimerId After(std::chrono::nanoseconds delay, std::function<void()> handler);
  void Cancel(TimerId& id);

  // Runs `work` after the handlers of the current round: the place to destroy what is still on the stack.
  void Later(std::function<void()> work);

  // Runs until `done()`, which is asked after every round.
  void Run(const std::function<bool()>& done);

  // How long whoever comes waits for others: how long the rounds took, and how late timers were. The second,
  // the processor time of the rounds alone, says what of it was the daemon's own work.
  const Lateness& late() const { return late_; }
  const Lateness& busy() const { return busy_; }

 private:
  struct Timer {
    TimerId id;
    std::function<void()> handler;
  };

  int TimeoutMs() const;
  void RunTimers();
  void RunLater();

  UniqueFd epoll_;
  uint64_t next_id_ = 1;
  std::unordered_map<WatchId, std::shared_ptr<std::function<void(uint32_t)>>> watches_;
  std::unordered_map<WatchId, int> fds_;
  std::multimap<Clock::time_point, Timer> timers_;
  std::vector<std::function<void()>> later_;
  Clock::duration timer_late_{0};  // the largest of this round
  Lateness late_, busy_;
};

}  // namespace causeway::daemon
