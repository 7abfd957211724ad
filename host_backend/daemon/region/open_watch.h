// SPDX-License-Identifier: Apache-2.0
// Learns that a process opens a file, without looking at it meanwhile. A VM in doorbell mode gets its region's memory from
// the daemon and never opens the file; a VM whose device is ivshmem-plain opens it by its path.
#pragma once
#include <functional>

#include "host_backend/daemon/loop/event_loop.h"
#include "host_backend/daemon/loop/worker_fd.h"

namespace causeway::daemon {

class OpenWatch {
 public:
  // Calls `opened` from the event loop after the file of that descriptor was opened, once for any number of times in one
  // round. Where the kernel gives no such watch (fs.inotify.max_user_instances), it is called once at once: whoever opens
  // the file cannot be told from nobody. It must not destroy this object. `loop` outlives it.
  OpenWatch(EventLoop& loop, int file, std::function<void()> opened);
  ~OpenWatch();
  OpenWatch(const OpenWatch&) = delete;
  OpenWatch& operator=(const OpenWatch&) = delete;

 private:
  void OnEvent();

  EventLoop& loop_;
  const std::function<void()> opened_;
  WorkerFd events_;  // of inotify: the kernel takes tens of milliseconds to close it
  EventLoop::WatchId watch_ = 0;
  EventLoop::TimerId at_once_ = 0;
};

}  // namespace causeway::daemon
