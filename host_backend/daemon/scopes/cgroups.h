// SPDX-License-Identifier: Apache-2.0
// A cgroup (version 2) for each scope: what its workers use of the host's memory, threads and processor is
// bounded for all of them together. Used where the daemon may manage the cgroup that it runs in: by systemd's
// Delegate=, or as root where no other process runs in it. Below that cgroup (or, where it is the root, below
// /causeway):
//   daemon       the daemon itself and what starts workers
//   spare        workers that have no session
//   scope-NAME   the workers of one scope, from their assignment on
// What a worker took before its assignment stays the spare group's, which has no limit: it is the driver's
// start.
// The kernel moves a process into another group after an RCU grace period, which takes tens of milliseconds
// on busy processors: a thread of its own waits for that, and for making and removing groups.
#pragma once
#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "host_backend/daemon/loop/aside.h"
#include "host_backend/daemon/process/config.h"

namespace causeway::daemon {

class Cgroups {
 public:
  explicit Cgroups(EventLoop& loop) : loop_(loop) {}
  ~Cgroups();
  Cgroups(const Cgroups&) = delete;
  Cgroups& operator=(const Cgroups&) = delete;

  // "", or one sentence that says why there are none; all else then does nothing.
  // `launcher`: the process that starts the workers; each begins in the launcher's group.
  std::string Start(pid_t launcher);
  bool used() const { return !base_.empty(); }

  // A new worker, before it has a session.
  void AddSpare(pid_t worker);
  struct Joined {
    std::string problem;     // why it has not joined, for the guest: it must not run then; empty: it has
    uint64_t oom_kills = 0;  // OutOfMemory at that moment
  };
  // Its session's scope from now on. `done` comes from the loop, or at once where there are no groups; a
  // worker that has joined needs a Leave.
  void Assign(pid_t worker, const std::string& scope, const HostShare& share,
              std::function<void(const Joined&)> done);
  // A process that works for a session of the scope, which does not end before it.
  void Add(pid_t process, const std::string& scope);
  // A worker that is in its scope's group since before this daemon. The first of a scope sets its limits again.
  void Rejoin(pid_t worker, const std::string& scope, const HostShare& share);
  // A worker of the scope is gone; of the last one, the group too.
  void Leave(const std::string& scope);
  // Calls `done` when all that was asked for so far has been done: from the loop, or at once where there are
  // no groups. No worker may be reaped before: the thread still uses its pid, which the kernel could give anew.
  void WhenDone(std::function<void()> done);
  // How often the kernel has ended a worker because the scope's memory was used up, since the scope began.
  uint64_t OutOfMemory(const std::string& scope) const;

 private:
  std::string Folder(const std::string& scope) const;
  // The functions of the thread.
  std::string Join(pid_t worker, const std::string& scope, const HostShare& share);
  void End(const std::string& scope);

  EventLoop& loop_;
  std::string base_;
  std::map<std::string, uint32_t> workers_;  // how many each scope has; only the thread uses it
  std::unique_ptr<Aside> aside_;
};

}  // namespace causeway::daemon
