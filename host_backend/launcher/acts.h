// SPDX-License-Identifier: Apache-2.0
// What the launcher does to processes and files once a request has passed its checks (launcher.h): nothing is checked
// here. It stands apart so that the checks can run without any right, and without any effect (tests/fuzz/fuzz_launcher.cc).
#pragma once
#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>

#include "host_backend/launcher/worker_child.h"

namespace causeway::launcher {

class Acts {
 public:
  virtual ~Acts() = default;

  // Each of these functions starts a child process and returns its process number; -1: no child was started, and errno says why.
  virtual pid_t StartWorker(const ChildPlan& plan) = 0;
  virtual pid_t StartCheckpointer(const ChildPlan& plan, uid_t user, gid_t device_group) = 0;
  // These children end by themselves. This one finds the process that maps the file (vm_search.h) and says so on `socket`.
  virtual pid_t FindVm(const struct stat& file, pid_t daemon, int socket) = 0;
  // It empties CACHE/USER/kernels if that holds more than `mib` MiB, and says so on `socket` unless that is -1 (cache_folder.h).
  virtual pid_t HoldCache(int cache, uint32_t user, uint32_t mib, int socket) = 0;
  // It empties CACHE/discarded/USER-NUMBER/kernels.
  virtual pid_t ClearCache(int cache, uint32_t user, uint32_t number) = 0;

  // Sends SIGKILL to a child that was not reaped.
  virtual void Kill(pid_t child) = 0;
  virtual bool Runs(pid_t child) = 0;
  // As waitpid with WNOHANG; `status` may be null.
  virtual pid_t Reap(pid_t child, int* status) = 0;
  // A pidfd, which the caller owns; -1: errno says why not.
  virtual int OpenProcess(pid_t child) = 0;

  // These answer 0 or an errno. Changes the owner or the group of an open file or of one by its place; -1 leaves that as it is.
  virtual int Give(int file, uid_t user, gid_t group) = 0;
  // Makes CACHE/USER/kernels.
  virtual int MakeCache(int cache, uint32_t user) = 0;
};

// With what this process may do; they have no state.
Acts& OwnActs();

}  // namespace causeway::launcher
