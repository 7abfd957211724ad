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

#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/loop/lateness.h"
#include "host_backend/daemon/loop/loop_work.h"

namespace causeway::daemon {

using Clock = std::chrono::steady_clock;

class EventLoop {
 public:
  using WatchId = uint64_t;  // never reused; 0 is none
  using TimerId = uint64_t;

  EventLoop();

  // `what`, here and below: the kind of work as the daemon's status names it, a literal.

  // Calls `handler(epoll events)` when the descriptor is ready. The caller keeps the descriptor open until
  // Unwatch.
  WatchId Watch(int fd, uint32_t events, std::string_view what, std::function<void(uint32_t)> handler);
  // The same for a descriptor that another process chose. 0: the kernel cannot watch it.
  WatchId TryWatch(int fd, uint32_t events, std::string_view what, std::function<void(uint32_t)> handler);
  // Safe inside any handler, also its own. Clears `id`; 0 is ignored.
  void Unwatch(WatchId& id);

  TimerId After(std::chrono::nanoseconds delay, std::string_view what, std::function<void()> handler);
  void Cancel(TimerId& id);

  // Runs `work` after the handlers of the current round: the place to destroy what is still on the stack.
  void Later(std::string_view what, std::function<void()> work);

  // Has the kernel prefer the calling thread, which is to Run, to others of its cgroup where it may: as root,
  // or by RLIMIT_NICE. Threads that it starts later begin with the same nice value, processes that were
  // started before keep theirs. No real-time class: strangers decide how much the loop has to do, and the
  // nice value still leaves the others their share.
  static void Prefer();

  // Runs until `done()`, which is asked after every round.
  void Run(const std::function<bool()>& done);

  // How long an event may have waited: how long its round took, or how late a timer came, or how long the
  // kernel ran something else although there was an event.
  const Lateness& late() const { return late_; }
  // What of that was the daemon's own work, waits for others included (loop_work.h).
  const Lateness& busy() const { return busy_; }
  // And what was the kernel's: the thread was ready to run and did not.
  const Lateness& unscheduled() const { return unscheduled_; }
  bool tells_unscheduled() const { return work_.clock().tells_unscheduled(); }
  const LoopWork& work() const { return work_; }

 private:
  struct Handler {
    std::string_view what;
    std::function<void(uint32_t)> call;
  };
  struct Timer {
    TimerId id;
    std::string_view what;
    std::function<void()> handler;
  };
  struct Work {
    std::string_view what;
    std::function<void()> call;
  };

  int TimeoutMs() const;
  void RunTimers();
  void RunLater();
  // Notes what the thread did since the last reading.
  void Done(std::string_view what);

  UniqueFd epoll_;
  uint64_t next_id_ = 1;
  std::unordered_map<WatchId, std::shared_ptr<Handler>> watches_;
  std::unordered_map<WatchId, int> fds_;
  std::multimap<Clock::time_point, Timer> timers_;
  std::vector<Work> later_;
  Clock::duration timer_late_{0};  // the largest of this round
  LoopWork work_;
  LoopWork::Reading last_;         // of this round
  Clock::duration round_busy_{0};  // of its handlers so far
  Lateness late_, busy_, unscheduled_;
};

}  // namespace causeway::daemon
