// SPDX-License-Identifier: Apache-2.0
// A cgroup (version 2) for each scope: what its workers use of the host's memory, threads and processor is
// bounded for all of them together. Used where the daemon may manage the cgroup that it runs in: by systemd's
// Delegate=, or as root where nobody else runs in it. Below that cgroup (or, where it is the root, below
// /causeway):
//   daemon       the daemon itself and what starts workers
//   spare        workers that have no session
//   scope-NAME   the workers of one scope, from their assignment on
// What a worker took before its assignment stays the spare group's, which has no limit: it is the driver's
// start.
#pragma once
#include <sys/types.h>

#include <map>
#include <string>

#include "host_backend/daemon/config.h"

namespace causeway::daemon {

class Cgroups {
 public:
  Cgroups() = default;
  ~Cgroups();
  Cgroups(const Cgroups&) = delete;
  Cgroups& operator=(const Cgroups&) = delete;

  // "", or one sentence that says why there are none; all else then does nothing.
  // `launcher`: the process that starts the workers; each begins in the launcher's group.
  std::string Start(pid_t launcher);
  bool used() const { return !base_.empty(); }

  // A new worker, before it has a session.
  void AddSpare(pid_t worker);
  // Its session's scope from now on. "", or the sentence for the guest process: unbounded it shall not run.
  std::string Assign(pid_t worker, const std::string& scope, const HostShare& share);
  // A worker of the scope is gone; of the last one, the group too.
  void Leave(const std::string& scope);
  // How often the kernel has ended a worker of the scope since it began because the scope's memory was used
  // up.
  uint64_t OutOfMemory(const std::string& scope) const;

 private:
  std::string Folder(const std::string& scope) const;

  std::string base_;
  std::map<std::string, uint32_t> workers_;  // of each scope
};

}  // namespace causeway::daemon
