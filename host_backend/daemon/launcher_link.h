// SPDX-License-Identifier: Apache-2.0
// The daemon's side of causeway-launcher, which does what the daemon has no right to any more: workers and
// other users' files (host_backend/launcher/protocol.h). One request at a time, answered at once.
#pragma once
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host_backend/daemon/config.h"
#include "host_backend/daemon/event_loop.h"
#include "host_backend/launcher/protocol.h"
#include "host_backend/result.h"
#include "host_backend/unique_fd.h"

namespace causeway::daemon {

struct LauncherPlan {
  std::string worker, driver, management, sandbox;
  bool nvml_shows_all = false;
  bool allow_pageable_access = false;
  std::pair<uint32_t, uint32_t> users{0, 0};  // count 0: workers keep the daemon's
  std::string shm, links, cache;              // host_backend/daemon/worker_folders.h; empty: none
  std::vector<gid_t> groups;                  // that files may be given to
};

class LauncherLink {
 public:
  // `program`: its path. `on_end` comes once from the loop, with a sentence, when the launcher is gone: all
  // workers end with it, and nothing can be started any more.
  static Result<std::unique_ptr<LauncherLink>> Start(EventLoop& loop, const std::string& program,
                                                     const LauncherPlan& plan,
                                                     std::function<void(const std::string&)> on_end);
  // Nobody behind it: every request fails.
  explicit LauncherLink(EventLoop& loop) : loop_(loop) {}
  // The launcher ends, and what it has started.
  ~LauncherLink();
  LauncherLink(const LauncherLink&) = delete;
  LauncherLink& operator=(const LauncherLink&) = delete;

  pid_t pid() const { return pid_; }

  struct Started {
    pid_t pid = -1;
    UniqueFd pidfd;
  };
  struct Wish {
    launcher::WorkerKind kind = launcher::WorkerKind::kCuda;
    uint64_t link = 0;                     // number of its cache's link; 0: none
    std::vector<std::string> gpus;         // UUIDs; empty: all
    std::vector<std::string> environment;  // NAME=VALUE of a guest
  };
  Result<Started> StartWorker(const Wish& wish, int output, int control);
  void Kill(pid_t worker);
  // True: it has ended, and its number may be another's from now on.
  bool Reap(pid_t worker, int* status);
  // It is killed, and nobody asks for it any more.
  void Abandon(pid_t worker);
  // 0 or errno.
  int GiveToGroup(int file, gid_t group);
  // A socket on which a launcher::VmProcess comes, with a pidfd where there is one; or none.
  UniqueFd FindVm(int region);
  int MakeCache(uint32_t user);
  int HoldCache(uint32_t user, uint32_t mib);
  int ClearCache(uint32_t user, uint32_t number);

 private:
  LauncherLink(EventLoop& loop, std::function<void(const std::string&)> on_end)
      : loop_(loop), on_end_(std::move(on_end)) {}
  launcher::Answer Call(const launcher::Request& request, const std::vector<int>& descriptors,
                        UniqueFd* descriptor = nullptr);
  bool Receive(launcher::Answer* answer, UniqueFd* descriptor);
  void Lost(bool hangs);
  int AwaitEnd();  // as of waitpid

  EventLoop& loop_;
  std::function<void(const std::string&)> on_end_;
  UniqueFd socket_;  // empty: it is gone
  EventLoop::WatchId watch_ = 0;
  pid_t pid_ = -1;
};

// Of this process, for good: no capability is left, and no program that it executes gets one. While there is
// one thread. "" or one sentence.
std::string DropCapabilities();

}  // namespace causeway::daemon
