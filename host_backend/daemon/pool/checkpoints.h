// SPDX-License-Identifier: Apache-2.0
// cuCheckpointProcess* for guests. A worker reaches no other process, so a checkpointer, a process that makes
// one call and ends, does it (host_backend/common/worker_control.h). The caller of this class has looked
// whose process is meant. A checkpointer talks with a driver that its target may have taken, so nothing of it
// is believed but one packet of a fixed size, and it lives as long as asker, target and its limit let it. A
// target that has ended is reaped only when its checkpointer is gone (LauncherLink::Reap), so that the answer
// of one that did its work is there: an unlocked process may go to its end at once.
//
//   waits -> its target is asked to let it look (WorkerReach) -> its checkpointer runs -> answered
//
// Under way there are few at once, and of one scope two, so that a scope whose processes do not answer keeps
// no other from its own; of one target there is one. A lock without a limit is asked for in pieces, so that
// what would let it succeed, another target's unlock, comes in between.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <list>
#include <optional>
#include <string>

#include "host_backend/common/worker_control.h"
#include "host_backend/daemon/loop/event_loop.h"
#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/process/launcher_link.h"

namespace causeway::daemon {

struct Checkpoint {
  uint64_t asker = 0, target = 0;  // numbers of workers, never reused
  pid_t target_pid = 0;
  uint32_t user = 0;  // of the target; 0: the daemon's
  std::string scope;
  CheckpointOrder order{};
};

class Checkpoints {
 public:
  static constexpr size_t kAtOnce = 16, kAtOnceOfScope = 2;
  static constexpr std::chrono::milliseconds kLockPiece{3'000};
  static constexpr std::chrono::seconds kReachLimit{5};
  // Beyond what the call itself may take: the start of the driver in the checkpointer.
  static constexpr std::chrono::seconds kShortLimit{60};
  // What a GPU's memory needs to go to the host's and back.
  static constexpr std::chrono::minutes kLongLimit{10};

  // What it needs of its owner, on the loop's thread.
  struct Owner {
    EventLoop& loop;
    // WorkerProcess::Reach of the target; its answer comes to Reached.
    std::function<void(uint64_t target, uint32_t number)> reach;
    std::function<void(pid_t checkpointer, const std::string& scope)> started;
    // Never from inside Ask; once for each that was asked for, unless its asker ended.
    std::function<void(uint64_t asker, const CheckpointAnswer& answer)> done;
    // Calls `done`, from the loop or at once, when nothing that `started` began uses the checkpointer's pid
    // any more.
    std::function<void(std::function<void()> done)> forget;
  };

  explicit Checkpoints(Owner owner) : owner_(std::move(owner)) {}
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Before the first Ask; there until this is gone.
  void Use(LauncherLink* launcher) { launcher_ = launcher; }
  // An asker has one at a time.
  void Ask(Checkpoint checkpoint);
  void Reached(uint64_t target, uint32_t number);
  // It is reaped: what it asked for is forgotten, and what others ask of it fails unless that has been done.
  void WorkerEnded(uint64_t number);
  bool idle() const { return jobs_.empty(); }

 private:
  struct Job {
    Checkpoint checkpoint;
    Clock::time_point asked = Clock::now();
    uint32_t number = 0;    // of its WorkerReach; 0: it waits
    bool starting = false;  // its checkpointer is asked for, starts or runs
    pid_t pid = -1;         // of its checkpointer
    WorkerFd control{};
    EventLoop::WatchId watch = 0;
    EventLoop::TimerId timer = 0;
  };
  using JobRef = std::list<Job>::iterator;

  void Pump();
  bool MayBegin(const Job& job) const;
  void Begin(Job& job);
  bool Start(Job& job);
  void OnStarted(uint32_t number, int error, pid_t pid);
  void End(pid_t checkpointer);
  void Limit(Job& job, Clock::duration limit);
  void OnControl(uint64_t asker);
  // Nothing: it has not answered.
  std::optional<CheckpointAnswer> Read(const Job& job) const;
  // Also where its checkpointer has not ended.
  void Stop(Job& job);
  void Finish(JobRef job, const CheckpointAnswer& answer);
  JobRef Find(uint64_t asker);

  const Owner owner_;
  LauncherLink* launcher_ = nullptr;
  std::list<Job> jobs_;  // in the order in which they were asked for
  uint32_t last_number_ = 0;
};

}  // namespace causeway::daemon
