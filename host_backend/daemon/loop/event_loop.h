// SPDX-License-Identifier: Apache-2.0
// What the daemon's main thread does: it waits for descriptors and timers and calls their handlers. Only that
// thread calls these functions. Handlers must not wait, because all sessions would wait with them.
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

  // `what`, here and below, is the kind of work as the daemon's status names it: a string literal.

  // Calls `handler(epoll events)` when the descriptor is ready. The caller keeps it open until Unwatch. What the kernel cannot
  // watch (it is no descriptor, because none was left, or the user's watches are used up) is logged, and the handler is called
  // once, with EPOLLERR | EPOLLHUP, after those of this round: whatever it belongs to ends, and the daemon goes on. Before Run
  // nobody is served yet: then the process ends with a sentence.
  WatchId Watch(int fd, uint32_t events, std::string_view what, std::function<void(uint32_t)> handler);
  // The same for a descriptor that another process chose. 0: the kernel cannot watch it.
  WatchId TryWatch(int fd, uint32_t events, std::string_view what, std::function<void(uint32_t)> handler);
  // Ends a watch and clears `id`; 0 is ignored. Any handler may call it, its own as well.
  void Unwatch(WatchId& id);

  // Calls `handler` once after the delay, unless Cancel was called. Cancel clears `id`, also after the call.
  TimerId After(std::chrono::nanoseconds delay, std::string_view what, std::function<void()> handler);
  void Cancel(TimerId& id);

  // Runs `work` after the handlers of this round, so it may destroy objects whose functions are running now.
  void Later(std::string_view what, std::function<void()> work);

  // Lowers the nice value of the calling thread, which is to call Run, if root or RLIMIT_NICE permits it.
  // Threads that it starts later begin with the same value; processes that were started before keep theirs.
  // It takes no real-time class: guests decide how much it has to do, and others must keep a share.
  static void Prefer();

  // Runs until `done()`, which is asked after every round.
  void Run(const std::function<bool()>& done);

  // How long events waited: while a round took long, a timer came late, or the kernel ran other threads.
  const Lateness& late() const { return late_; }
  // The part of that in which the daemon worked or waited for others (loop_work.h).
  const Lateness& busy() const { return busy_; }
  // The part in which the thread was ready to run and the kernel did not run it.
  const Lateness& unscheduled() const { return unscheduled_; }
  bool tells_unscheduled() const { return work_.clock().tells_unscheduled(); }
  const LoopWork& work() const { return work_; }

 private:
  struct Handler {
    std::string_view what;
    std::function<void(uint32_t)> call;
  };
  struct Work {
    std::string_view what;
    std::function<void()> call;
    TimerId id = 0;  // of a timer
  };

  int TimeoutMs() const;
  void RunTimers();
  void RunLater();
  // Notes what the thread did since the last reading.
  void Done(std::string_view what);

  UniqueFd epoll_;
  bool running_ = false;  // Run was called
  uint64_t next_id_ = 1;
  std::unordered_map<WatchId, std::shared_ptr<Handler>> watches_;
  std::unordered_map<WatchId, int> fds_;
  std::multimap<Clock::time_point, Work> timers_;
  std::vector<Work> later_;
  Clock::duration timer_late_{0};  // by how much the latest timer of this round was late
  LoopWork work_;
  LoopWork::Reading last_;         // the last reading in this round
  Clock::duration round_busy_{0};  // how long this round's handlers took so far
  Lateness late_, busy_, unscheduled_;
};

}  // namespace causeway::daemon
