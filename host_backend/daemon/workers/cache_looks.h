// SPDX-License-Identifier: Apache-2.0
// Holds the folders of compiled kernels of users with sessions to their quota, whatever their workers write there
// (host_backend/sandbox/cache_quota.h): each is looked at when its first session begins, and again after something has grown
// in it. Nothing is looked at, and the daemon is not woken, while nobody writes. The launcher has each look made by a process
// of that user; they are begun one at a time, and of one folder every five seconds at most. All of it belongs to the
// daemon's thread.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "host_backend/daemon/loop/event_loop.h"
#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/process/launcher_link.h"

namespace causeway::daemon {

class CacheLooks {
 public:
  // Those that have sessions now, and the scope of each.
  using Users = std::map<uint32_t, std::string>;

  CacheLooks(EventLoop& loop, std::function<Users()> users);
  ~CacheLooks();
  CacheLooks(const CacheLooks&) = delete;
  CacheLooks& operator=(const CacheLooks&) = delete;

  // Outlives this; before Begin.
  void Use(LauncherLink* launcher) { launcher_ = launcher; }
  // Of each folder, from each one's next look on, which is soon; 0: they are not looked at.
  void Limit(uint64_t bytes);
  // A session of that user has begun.
  void Begin(uint32_t user, const std::string& scope);
  // Sessions may have ended: folders of users that have none are watched no longer, because each takes a descriptor and one of
  // the kernel's inotify instances.
  void SessionsEnded();
  // The user id serves that scope from now on: another's folder is no longer there.
  void Serves(uint32_t user, const std::string& scope);

 private:
  struct Folder {
    std::string scope;
    bool due = true;
    Clock::time_point looked{};  // when the last look began
    // The answer of a look that was begun, then what tells of a change (inotify); or none. To close the latter may take tens
    // of milliseconds, because the kernel waits until nobody else uses it: not on the daemon's thread.
    WorkerFd socket;
    EventLoop::WatchId watch = 0;  // of it
  };
  void Drop(Folder& folder);
  void Arm();
  void LookAtNext();
  void Look(uint32_t user, Folder& folder);
  void OnAnswer(uint32_t user);
  void OnChange(uint32_t user);

  EventLoop& loop_;
  const std::function<Users()> users_;
  LauncherLink* launcher_ = nullptr;
  uint64_t bytes_ = 0;
  std::map<uint32_t, Folder> folders_;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace causeway::daemon
