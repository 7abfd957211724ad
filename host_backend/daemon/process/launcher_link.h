// SPDX-License-Identifier: Apache-2.0
// The daemon's side of causeway-launcher, which does what the daemon has no right to do any more: it starts
// workers and handles other users' files (host_backend/launcher/protocol.h). Requests are answered in their
// order. The event loop does not wait for the answers, because on a busy host the launcher may not run for
// long. The daemon's only thread calls all functions.
#pragma once
#include <sys/types.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host_backend/common/result.h"
#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/loop/event_loop.h"
#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/process/config.h"
#include "host_backend/launcher/protocol.h"

namespace causeway::daemon {

struct LauncherPlan {
  std::string worker, workers, driver, management, sandbox;
  bool nvml_shows_all = false;
  bool allow_pageable_access = false;
  std::pair<uint32_t, uint32_t> users{0, 0};  // count 0: workers keep the daemon's
  std::string shm, links, cache;              // host_backend/daemon/scopes/worker_folders.h; empty: none
  std::vector<gid_t> groups;                  // the groups to which files may be given
  uint32_t keep_s = 0;  // how long it waits for another daemon; 0: it ends with this one
  std::string socket;   // where that one finds it; for keep_s
};

class LauncherLink {
 public:
  // `program` is the launcher's path. The loop calls `on_end` once, with a sentence, when the launcher is
  // gone: all workers end with it, and nothing can be started any more.
  static Result<std::unique_ptr<LauncherLink>> Start(EventLoop& loop, const std::string& program,
                                                     const LauncherPlan& plan,
                                                     std::function<void(const std::string&)> on_end);
  // The launcher that a daemon of before has left at that socket; null: there is none. A sentence: there is one that does
  // not answer.
  static Result<std::unique_ptr<LauncherLink>> Find(EventLoop& loop, const std::string& socket,
                                                    std::function<void(const std::string&)> on_end);
  // A link without a launcher: every request fails.
  explicit LauncherLink(EventLoop& loop) : loop_(loop) {}
  // Ends the launcher and all that it has started, unless Leave was called.
  ~LauncherLink();
  LauncherLink(const LauncherLink&) = delete;
  LauncherLink& operator=(const LauncherLink&) = delete;

  pid_t pid() const { return pid_; }
  int32_t version() const { return version_; }  // of its protocol
  // Of a launcher that does not end with its daemon: the next one finds what Keep gave to it.
  bool keeps() const { return keeps_; }
  void Leave(bool leave) { leave_ = leave; }
  // Whether all that was asked for has been answered.
  bool idle() const { return asked_.empty() && unsent_.empty(); }

  struct Started {
    pid_t pid = -1;
    UniqueFd pidfd;
  };
  struct Wish {
    launcher::WorkerKind kind = launcher::WorkerKind::kCuda;
    uint64_t link = 0;                     // number of its cache's link; 0: none
    std::vector<std::string> gpus;         // UUIDs; empty: all
    std::vector<std::string> environment;  // NAME=VALUE of a guest
    uint64_t worker_hash = 0;              // as launcher::Request has it
  };
  // `done` is called from the event loop, never inside these calls, and not if this link ends before.
  // The result is empty, or a sentence that says why the request cannot be sent; then `done` is not called.
  std::string StartWorker(const Wish& wish, UniqueFd output, UniqueFd control,
                          std::function<void(Result<Started>)> done);
  // Reports the end of a worker. error 0: it has ended, with a status like waitpid's, and its process id may
  // be given to another process from now on. Otherwise an errno; EAGAIN while it runs, and
  // for three seconds at most while a checkpointer of it does, which has answered before this one is gone.
  void Reap(pid_t worker, std::function<void(int error, int status)> done);
  // Starts a checkpointer: a process that makes one call about that worker for the daemon
  // (host_backend/common/worker_control.h). Kill and Abandon end it. error is 0, or an errno.
  void StartCheckpointer(pid_t target, uint32_t user, UniqueFd control,
                         std::function<void(int error, pid_t checkpointer)> done);
  // These have no answer; launcher::Action says what each does.
  void Kill(pid_t worker);
  void Abandon(pid_t worker);
  // They do nothing where keeps() is false. The descriptors are copied. When Keep returns, the launcher gets the record whatever becomes
  // of this process; where it refuses it, it forgets that key.
  void Keep(uint64_t key, pid_t worker, const std::vector<int>& descriptors);
  // Copies of what that record has, which a stranger may have sent: they are closed after the launcher's, which has one thread and must
  // never be the last to close such a descriptor. Before a Keep of that key, or after Take.
  void Hold(uint64_t key, std::span<const int> descriptors, const ClosingAccountRef& account);
  void Forget(uint64_t key);
  // Returns when the launcher has done all that it was asked for, or is lost.
  void AwaitAll();
  void ClearCache(uint32_t user, uint32_t number);
  // The result is a socket on which a launcher::VmProcess comes, with a pidfd if there is such a process; it
  // is empty if the request cannot be made.
  UniqueFd FindVm(int region);
  // Has the folder of that user's compiled kernels held to so many MiB. The result is a socket on which a launcher::CacheWatch
  // comes, or its end; it is empty where that cannot be asked for: the launcher of an older release says nothing.
  UniqueFd WatchCache(uint32_t user, uint32_t mib);

  // These wait for the answer, which is 0 or an errno.
  int GiveToGroup(int file, gid_t group);
  int GiveToUser(int file, uid_t user);
  int MakeCache(uint32_t user);
  struct Kept {
    int error = 0;  // ENOENT: there are no more; ETOOMANYREFS, EMFILE: of this one only key and worker came
    uint64_t key = 0;
    pid_t worker = 0;                   // 0: none
    std::vector<UniqueFd> descriptors;  // copies
  };
  // What the record of that place holds; before all other requests of this link. With any other error none can be asked for.
  Kept Take(uint32_t number);

 private:
  LauncherLink(EventLoop& loop, std::function<void(const std::string&)> on_end)
      : loop_(loop), on_end_(std::move(on_end)) {}
  using Answered = std::function<void(const launcher::Answer&, UniqueFd)>;
  using Copies = std::vector<WorkerFd>;
  struct Asked {
    Answered done;                         // may be empty
    bool at_once = false;                  // the caller waits for it; other answers are delivered by the loop
    std::shared_ptr<Copies> until_then{};  // of what the launcher closes before it answers
  };
  struct Unsent {
    std::unique_ptr<launcher::Request> request;
    std::vector<UniqueFd> descriptors;
    Asked asked;
  };
  void Ask(const launcher::Request& request, std::vector<UniqueFd> descriptors, Asked asked);
  // With one end of a new socket as its last descriptor; the result is the other.
  UniqueFd AskWithSocket(const launcher::Request& request, std::vector<UniqueFd> descriptors);
  void Send(const launcher::Request& request, const std::vector<UniqueFd>& descriptors, Asked asked);
  void SendUnsent();
  launcher::Answer Call(const launcher::Request& request, std::vector<UniqueFd> descriptors);
  void AwaitAnswer();
  void OnAnswer();
  void Take(const launcher::Answer& answer, UniqueFd descriptor, bool waiting);
  void Finish(const Asked& asked, const launcher::Answer& answer, UniqueFd descriptor, bool later);
  bool Receive(launcher::Answer* answer, UniqueFd* descriptor, int flags = 0);
  void LimitWait();
  void Lost(bool hangs);
  int AwaitEnd();  // as of waitpid

  EventLoop& loop_;
  std::function<void(const std::string&)> on_end_;
  UniqueFd socket_;  // empty: it is gone
  EventLoop::WatchId watch_ = 0;
  struct Held {
    Copies now;     // of what the launcher has
    Copies before;  // and of what it closes when it gets that, or forgets the record
  };
  std::map<uint64_t, Held> held_;  // by key
  std::deque<Asked> asked_;        // requests that have no answer yet, in their order
  std::deque<Unsent> unsent_;      // requests for which the socket had no room, after those
  EventLoop::TimerId patience_ = 0;
  pid_t pid_ = -1;
  bool keeps_ = false;
  bool leave_ = false;
  int32_t version_ = 0;
};

// Takes all capabilities from this process for good; no program that it executes gets one. To be called while
// there is one thread. Empty, or one sentence that says what failed.
std::string DropCapabilities();

}  // namespace causeway::daemon
