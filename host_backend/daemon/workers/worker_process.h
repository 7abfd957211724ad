// SPDX-License-Identifier: Apache-2.0
// One worker: started, told what to serve, watched, ended. host_backend/common/worker_control.h is the
// protocol.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host_backend/common/result.h"
#include "host_backend/common/unique_fd.h"
#include "host_backend/common/worker_control.h"
#include "host_backend/daemon/loop/event_loop.h"
#include "host_backend/daemon/loop/pace.h"
#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/process/launcher_link.h"
#include "host_backend/daemon/process/log.h"
#include "host_backend/daemon/process/worker_programs.h"
#include "host_backend/daemon/scopes/worker_folders.h"
#include "host_backend/daemon/takeover/vault.h"
#include "host_backend/daemon/workers/sandbox_watch.h"
#include "host_backend/daemon/workers/worker_messages.h"
#include "ivshmem_ring/release/build_stamp.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::daemon {

struct WorkerProgram {
  WorkerPrograms programs;
  std::string sandbox = "enforce";   // host_backend/sandbox/filter.h
  LauncherLink* launcher = nullptr;  // there as long as any worker
  WorkerFolders* folders = nullptr;
  OpenQuestion* question = nullptr;
  // Calls back when nothing uses the pid of a worker that has ended any more: only then is it reaped.
  std::function<void(std::function<void()> done)> forget = [](const std::function<void()>& done) { done(); };
  std::chrono::milliseconds ready_limit{60'000};
  std::chrono::milliseconds end_limit{2'000};  // from the closed control socket to SIGKILL
};

// What a session needs of its worker.
struct WorkerWish {
  std::vector<std::string> environment;  // NAME=VALUE, instead of the daemon's own
  std::vector<std::string> gpus{};       // UUIDs of those that it may open; empty: all
  SessionKind kind = SessionKind::kCuda;
  uint64_t api_hash = kBuildStamp.api_hash;  // of the rows that it serves
  bool watch_memory = false;                 // no session: OnMemoryUse
  // A worker started ahead of time will do.
  bool any() const {
    return environment.empty() && gpus.empty() && kind == SessionKind::kCuda &&
           api_hash == kBuildStamp.api_hash;
  }
};

class WorkerProcess {
 public:
  enum class State { kStarting, kReady, kAssigned, kEnding };

  class Listener {
   public:
    virtual ~Listener() = default;
    // It is a process now, with a pid. Before anything else of it; one that cannot be started gets OnReady
    // (failed) and OnExit instead.
    virtual void OnStarted(WorkerProcess&) {}
    // The worker said that it can serve, or that it cannot (failed); then it is already being ended.
    virtual void OnReady(WorkerProcess& worker, const WorkerReady& ready) = 0;
    // It serves its guest from now on: what Descriptors names is complete.
    virtual void OnConfined(WorkerProcess&) {}
    // It is being ended, so that its control socket is to be closed by all who have it.
    virtual void OnEnding(WorkerProcess&) {}
    virtual void OnUsage(WorkerProcess& worker, const WorkerUsage& usage) = 0;
    // To be answered by AnswerSharing.
    virtual void OnSharing(WorkerProcess& worker, const SharingRequest& request, WorkerFd descriptor) = 0;
    // To be answered by AnswerCheckpoint.
    virtual void OnCheckpoint(WorkerProcess&, const CheckpointOrder&) {}
    // As Reach has asked.
    virtual void OnReachable(WorkerProcess&, uint32_t) {}
    // Whether it may map that part of its session's region; asked while the calling thread waits.
    virtual bool MayMap(WorkerProcess& worker, const RegionMapping& mapping) = 0;
    virtual void OnMemoryUse(WorkerProcess&, const WorkerMemoryUse&) {}
    virtual void OnDeviceUse(WorkerProcess&, const WorkerDeviceUse&) {}
    // The worker asks which other sessions belong to its scope: SendPeers answers.
    virtual void OnQuery(WorkerProcess& worker) = 0;
    // Its session has lost its guest's connection and waits for another one, or goes on.
    virtual void OnLink(WorkerProcess&, bool) {}
    // It broke the protocol of its control socket, which the log has been told; it is being killed.
    virtual void OnViolation(WorkerProcess&) {}
    // It is gone and reaped; `how` completes "the worker ...". The listener destroys it after this call.
    virtual void OnExit(WorkerProcess& worker, const std::string& how, bool orderly) = 0;
  };

  // The process is being started when this returns; what is wrong with that comes later.
  static Result<std::unique_ptr<WorkerProcess>> Start(EventLoop& loop, const WorkerProgram& program,
                                                      const WorkerWish& wish, Listener& listener);
  // One that a daemon of before has started: the record is what Kept and Descriptors were. Null: it
  // is not complete.
  static std::unique_ptr<WorkerProcess> Resume(EventLoop& loop, const WorkerProgram& program,
                                               Vault::Record& record, Listener& listener);
  // What the next daemon needs to go on with it, while it is ready or serves.
  Json Kept() const;
  Vault::Descriptors Descriptors() const;
  // Kills it if it still runs.
  ~WorkerProcess();

  // Where what it says is written: it is the session's guest that makes it say it. Before Assign.
  void SetLog(std::shared_ptr<LimitedLog> log) { log_ = std::move(log); }
  // How often it may have the daemon work, together with others of its scope. Before Assign.
  void SetPace(std::shared_ptr<Pace> pace) { pace_ = std::move(pace); }
  // Whose are the descriptors that it sends, and its sockets (loop/closing.h). Before Assign.
  void SetClosing(ClosingAccountRef account) {
    control_.ChargeTo(account);
    closing_ = std::move(account);
  }
  const ClosingAccountRef& closing() const { return closing_; }
  // What the session's memory is counted on. Before Assign.
  void SetAccount(int descriptor, int reading, uint32_t cell);
  // The scope that it will serve, and the user that it becomes for that (0: it stays as is). Before Assign.
  void SetScope(const std::string& scope, uint32_t user);
  // It looks whether its scope's compiled kernels are more than that. Before Assign.
  void HoldCache(uint64_t bytes) { cache_bytes_ = bytes; }
  // Makes a ready spare that user now, and has it look at the compiled kernels, so that its session need not
  // wait for either. After SetScope and HoldCache.
  void Belong();
  // Hands over a session: descriptors are duplicated to the worker, the caller keeps its own. `grace_s`: for how long it waits for its
  // guest when the connection is lost; not 0 only where waits_for_guests(). `compresses`: both sides may; only where compresses().
  bool Assign(const WorkerAssignment& assignment, const std::vector<int>& descriptors, uint32_t grace_s = 0,
              bool compresses = false);
  // The guest of such a session has made another connection, and has received so much. `descriptor` is as in Assign.
  bool Resume(uint64_t received, int descriptor);
  // `descriptor` is duplicated to the worker if it is not -1.
  void AnswerSharing(const SharingReply& reply, int descriptor);
  // Whether processes of its user may look at it: not with 0, otherwise OnReachable(number) follows.
  void Reach(uint32_t number);
  void AnswerCheckpoint(const CheckpointAnswer& answer);
  // One that watches memory is to say what devices have, too: OnDeviceUse, for each before the end of a round.
  void TellDevices();
  void SendPeers(const std::vector<WorkerPeer>& peers);
  // Asks it to end; after the limit it is killed.
  void End();
  void Kill();
  // What it sent no worker sends: the log is told, it is killed, and OnViolation follows.
  void Violate(const std::string& what);

  pid_t pid() const { return pid_; }  // -1: it is none yet
  State state() const { return state_; }
  bool assigned() const { return assigned_; }
  bool asked_to_end() const { return asked_to_end_; }
  Clock::time_point started() const { return started_; }
  WorkerKind kind() const { return kind_; }
  uint64_t api_hash() const { return api_hash_; }  // of its rows
  bool waits_for_guests() const { return waits_for_guests_; }
  bool compresses() const { return compresses_; }
  // Whether nothing of its session's start is under way.
  bool settled() const { return state_ != State::kAssigned || confined_; }
  // What its owner knows it by.
  void SetNumber(uint64_t number) { number_ = number; }
  uint64_t number() const { return number_; }

 private:
  WorkerProcess(EventLoop& loop, const WorkerProgram& program, WorkerKind kind, uint64_t api_hash,
                Listener& listener);
  void WatchAll();
  void AskAgain();
  void Listen(WorkerFd questions);
  void Wind();  // closes the control socket and sets the limit
  void OnLaunched(Result<LauncherLink::Started> started);
  void OnPidfd();
  void AskToReap();
  void OnReaped(int status);
  // host_backend/daemon/workers/worker_reading.cc: all that it says.
  void OnControl(bool at_its_pace);
  bool ReadPacket();
  void Handle(const WorkerMessage& message, std::vector<WorkerFd>& descriptors);
  void HandleReady(const WorkerReady& ready);
  std::string WhyNotUsed(const WorkerReady& ready) const;
  void HandleConfined(const WorkerConfined& confined, std::vector<WorkerFd>& descriptors);
  void WatchControl();
  void WatchOutput();
  void OnOutput(bool at_its_pace);
  ssize_t ReadOutput();
  void LogOutput(bool all);

  EventLoop& loop_;
  Listener& listener_;
  const WorkerProgram program_;
  const WorkerKind kind_;
  const uint64_t api_hash_;
  WorkerDialogue dialogue_;
  const Clock::time_point started_ = Clock::now();
  pid_t pid_ = -1;
  State state_ = State::kStarting;
  bool assigned_ = false;
  bool confined_ = false;
  bool asks_again_ = false;        // kAsksAgain
  bool waits_for_guests_ = false;  // kWaitsForGuests
  bool compresses_ = false;        // kCompresses
  uint64_t number_ = 0;
  int account_ = -1, account_reading_ = -1;  // the daemon's own
  uint32_t account_cell_ = 0;
  uint32_t user_ = 0;
  uint64_t cache_bytes_ = 0;
  uint64_t cache_link_ = 0;
  std::string violation_;     // what it sent that no worker sends
  bool kill_wanted_ = false;  // once it is a process
  bool reaped_ = false;       // or never started
  // What the launcher's answers find of this worker: null when it is gone.
  std::shared_ptr<WorkerProcess*> self_ = std::make_shared<WorkerProcess*>(this);
  bool asked_to_end_ = false;  // by End or Kill, or because it said that it cannot serve
  UniqueFd pidfd_;
  WorkerFd control_;
  UniqueFd output_;
  std::unique_ptr<SandboxWatch> sandbox_;
  EventLoop::WatchId pidfd_watch_ = 0;
  EventLoop::WatchId control_watch_ = 0;
  EventLoop::WatchId output_watch_ = 0;
  EventLoop::TimerId timer_ = 0;
  EventLoop::TimerId control_pause_ = 0, output_pause_ = 0;  // until it is listened to again
  std::string pending_output_;
  std::shared_ptr<LimitedLog> log_ = std::make_shared<LimitedLog>();
  std::shared_ptr<Pace> pace_ = std::make_shared<WorkerPace>();
  ClosingAccountRef closing_ = std::make_shared<ClosingAccount>();
};

}  // namespace causeway::daemon
