// SPDX-License-Identifier: Apache-2.0
// Work that may wait for the kernel or for other processes, done in its order by a thread of its own, so that
// the event loop does not wait for it.
#pragma once
#include <functional>
#include <thread>

#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/loop/event_loop.h"
#include "host_backend/daemon/loop/hand_off.h"

namespace causeway::daemon {

class Aside {
 public:
  explicit Aside(EventLoop& loop);
  // All work that was asked for has been done then; no `done` comes any more.
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  // `done` runs later, from the event loop. The first call starts the thread.
  void Do(std::function<void()> work, std::function<void()> done = {});

 private:
  struct Job {
    std::function<void()> work, done;
    bool last = false;  // the thread ends
  };
  void Run();
  void OnDone();

  EventLoop& loop_;
  UniqueFd event_;
  EventLoop::WatchId watch_ = 0;
  HandOff<Job> jobs_;
  HandOff<std::function<void()>> done_;
  std::thread thread_;
};

}  // namespace causeway::daemon
