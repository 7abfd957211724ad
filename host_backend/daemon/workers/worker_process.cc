// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/workers/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <span>

#include "host_backend/launcher/worker_child.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::daemon {
namespace {

using launcher::kExecFailed;

constexpr std::chrono::milliseconds kReapAgain{2};

WorkerKind KindOf(const WorkerWish& wish) {
  if (wish.watch_memory) return WorkerKind::kMemoryWatch;
  return wish.kind == SessionKind::kCuda ? WorkerKind::kCuda : WorkerKind::kManagement;
}

std::string DescribeExit(int status, bool& orderly) {
  orderly = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
    return "was killed by its sandbox at a forbidden system call, which the kernel's log names";
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    return "was killed by signal " + std::to_string(number) + " (" + strsignal(number) + ")";
  }
  if (WEXITSTATUS(status) == kExecFailed) return "could not be started (exit status 127)";
  return "ended with exit status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

WorkerProcess::WorkerProcess(EventLoop& loop, const WorkerProgram& program, WorkerKind kind,
                             uint64_t api_hash, Listener& listener)
    : loop_(loop),
      listener_(listener),
      program_(program),
      kind_(kind),
      api_hash_(api_hash),
      dialogue_(kind) {}

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(EventLoop& loop, const WorkerProgram& program,
                                                            const WorkerWish& wish, Listener& listener) {
  const std::string path = program.programs.PathOf(wish.api_hash);
  if (path.empty())
    return Error{"The worker for rows " + HashText(wish.api_hash) + " is not installed any more."};
  if (access(path.c_str(), X_OK) != 0) {
    return Error{"The worker program " + path + " cannot be executed: " + ErrnoText() +
                 "; correct `worker` in the configuration of causewayd."};
  }
  int control[2];
  int output[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) != 0)
    return Error{"No control socket for a worker: " + ErrnoText() + "."};
  WorkerFd own_control(control[0]);
  UniqueFd child_control(control[1]);
  if (pipe2(output, O_CLOEXEC) != 0) return Error{"No output pipe for a worker: " + ErrnoText() + "."};
  UniqueFd own_output(output[0]);
  UniqueFd child_output(output[1]);
  fcntl(own_control.get(), F_SETFL, O_NONBLOCK);
  fcntl(own_output.get(), F_SETFL, O_NONBLOCK);

  LauncherLink::Wish asked{KindOf(wish), 0, wish.gpus, wish.environment,
                           program.programs.LauncherNameOf(wish.api_hash)};
  if (wish.kind == SessionKind::kCuda) asked.link = program.folders->NewLink();
  std::unique_ptr<WorkerProcess> worker(
      new WorkerProcess(loop, program, KindOf(wish), wish.api_hash, listener));
  WorkerProcess* self = worker.get();
  self->cache_link_ = asked.link;
  self->control_ = std::move(own_control);
  self->output_ = std::move(own_output);
  const std::string why = program.launcher->StartWorker(
      asked, std::move(child_output), std::move(child_control),
      [found = self->self_, launcher = program.launcher](Result<LauncherLink::Started> started) {
        if (*found != nullptr) {
          (*found)->OnLaunched(std::move(started));
        } else if (started.ok()) {
          launcher->Abandon(started.value().pid);
        }
      });
  if (!why.empty()) return Error{why};
  self->timer_ = loop.After(program.ready_limit, "a worker's time limit", [self] {
    WorkerReady late{};
    late.failed = 1;
    std::snprintf(late.text, sizeof(late.text),
                  "The worker did not become ready within %lld ms; the GPU driver on the host hangs.",
                  static_cast<long long>(self->program_.ready_limit.count()));
    self->Kill();
    self->listener_.OnReady(*self, late);
  });
  return worker;
}

WorkerProcess::~WorkerProcess() {
  loop_.Cancel(timer_);
  loop_.Cancel(control_pause_);
  loop_.Cancel(output_pause_);
  loop_.Unwatch(control_watch_);
  loop_.Unwatch(output_watch_);
  loop_.Unwatch(pidfd_watch_);
  program_.folders->Drop(cache_link_);
  *self_ = nullptr;
  if (!reaped_ && pid_ > 0) program_.launcher->Abandon(pid_);
}

void WorkerProcess::OnLaunched(Result<LauncherLink::Started> started) {
  if (!started.ok()) {
    reaped_ = true;
    WorkerReady failed{};
    failed.failed = 1;
    started.error().copy(failed.text, sizeof failed.text - 1);
    if (state_ == State::kStarting) {
      End();
      listener_.OnReady(*this, failed);
    }
    loop_.Cancel(timer_);
    return listener_.OnExit(*this, "could not be started. " + started.error(), false);
  }
  pid_ = started.value().pid;
  pidfd_ = std::move(started.value().pidfd);
  listener_.OnStarted(*this);
  // Its limit may have come meanwhile, or its session may have gone: then it finds its socket closed.
  WatchAll();
  if (kill_wanted_) program_.launcher->Kill(pid_);
}

std::unique_ptr<WorkerProcess> WorkerProcess::Resume(EventLoop& loop, const WorkerProgram& program,
                                                     Vault::Record& record, Listener& listener) {
  constexpr std::chrono::seconds kConfinedLimit{10};
  const auto kind = WorkerKind(record.state.at("kind").get<uint32_t>());
  const bool assigned = record.state.at("assigned").get<bool>();
  std::unique_ptr<WorkerProcess> worker(
      new WorkerProcess(loop, program, kind, record.state.at("api_hash").get<uint64_t>(), listener));
  worker->reaped_ = true;  // until it is complete: whoever called ends it
  worker->control_ = WorkerFd(record.Take("control"));
  worker->output_ = record.Take("output");
  worker->pidfd_ = record.Take("pidfd");
  if (!worker->control_ || !worker->output_ || !worker->pidfd_ || record.worker <= 0) return nullptr;
  worker->cache_link_ = record.state.at("link").get<uint64_t>();
  worker->user_ = record.state.at("user").get<uint32_t>();
  worker->confined_ = record.state.at("confined").get<bool>();
  worker->state_ = assigned ? State::kAssigned : State::kReady;
  worker->assigned_ = assigned;
  worker->dialogue_.Resume(assigned, worker->confined_);
  worker->pid_ = record.worker;
  worker->reaped_ = false;
  if (WorkerFd questions(record.Take("questions")); questions) {
    worker->Listen(std::move(questions));
    loop.Later("a question of before", [found = worker->self_] {
      if (*found != nullptr && (*found)->sandbox_) (*found)->sandbox_->AnswerWhatWasLeft();
    });
  }
  // A daemon that was killed may have made the record and not have sent the assignment.
  if (assigned && !worker->confined_)
    worker->timer_ = loop.After(kConfinedLimit, "a worker's time limit", [self = worker.get()] {
      if (!self->confined_) self->Kill();
    });
  worker->asks_again_ = record.state.value("asks_again", false);
  worker->waits_for_guests_ = record.state.value("waits_for_guests", false);
  if (worker->waits_for_guests_) worker->dialogue_.MayWait();
  worker->compresses_ = record.state.value("compresses", false);
  worker->WatchAll();
  worker->AskAgain();
  return worker;
}

// The daemon of before may have read an order and not answered it, and have let a checkpointer look into this worker. First of
// all that this daemon says to it.
void WorkerProcess::AskAgain() {
  if (!assigned_ || kind_ != WorkerKind::kCuda) return;
  Reach(0);
  if (!asks_again_) return;
  dialogue_.AskedAgain();
  CheckpointAnswer again{};
  again.again = 1;
  send(control_.get(), &again, sizeof again, MSG_NOSIGNAL | MSG_DONTWAIT);
}

Json WorkerProcess::Kept() const {
  return {{"kind", uint32_t(kind_)},   {"api_hash", api_hash_},
          {"assigned", assigned_},     {"confined", confined_},
          {"link", cache_link_},       {"user", user_},
          {"asks_again", asks_again_}, {"waits_for_guests", waits_for_guests_},
          {"compresses", compresses_}};
}

Vault::Descriptors WorkerProcess::Descriptors() const {
  return {{"control", control_.get()},
          {"output", output_.get()},
          {"pidfd", pidfd_.get()},
          {"questions", sandbox_ ? sandbox_->listener() : -1}};
}

void WorkerProcess::WatchAll() {
  if (control_) WatchControl();
  WatchOutput();
  pidfd_watch_ = loop_.Watch(pidfd_.get(), EPOLLIN, "a worker's exit", [this](uint32_t) { OnPidfd(); });
}

void WorkerProcess::SetAccount(int descriptor, int reading, uint32_t cell) {
  account_ = descriptor;
  account_reading_ = reading;
  account_cell_ = cell;
}

void WorkerProcess::SetScope(const std::string& scope, uint32_t user) {
  user_ = user;
  program_.folders->Point(cache_link_, scope, user);
}

void WorkerProcess::Belong() {
  const WorkerScope scope{user_, 0, std::exchange(cache_bytes_, 0)};
  send(control_.get(), &scope, sizeof scope, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool WorkerProcess::Assign(const WorkerAssignment& assignment, const std::vector<int>& descriptors,
                           uint32_t grace_s, bool compresses) {
  if (state_ != State::kReady) return false;
  WorkerLongAssignment said{assignment, grace_s, compresses ? 1u : 0u};
  WorkerAssignment& complete = said.assignment;
  complete.account_cell = account_cell_;
  complete.user = user_;
  complete.cache_bytes = cache_bytes_;
  std::vector<int> all = {account_, account_reading_};
  all.insert(all.end(), descriptors.begin(), descriptors.end());
  const bool is_long = grace_s != 0 || compresses;
  if (!SendPacket(control_.get(), &said, is_long ? sizeof said : sizeof complete, all)) return false;
  if (grace_s != 0) dialogue_.MayWait();
  state_ = State::kAssigned;
  dialogue_.Assigned();
  assigned_ = true;
  return true;
}

bool WorkerProcess::Resume(uint64_t received, int descriptor) {
  const WorkerResume message{{uint32_t(received), uint32_t(received >> 32)}, {}};
  return control_ && ReadsItsAnswers(control_.get()) &&
         SendPacket(control_.get(), &message, sizeof message, std::span(&descriptor, 1));
}

void WorkerProcess::AnswerSharing(const SharingReply& reply, int descriptor) {
  SharingReply copy = reply;
  copy.has_descriptor = descriptor >= 0 ? 1 : 0;
  // A worker has one question at a time, so there is room; one that breaks this rule gets no answer.
  if (!ReadsItsAnswers(control_.get())) return;
  if (SendPacket(control_.get(), &copy, sizeof(copy), std::span(&descriptor, descriptor >= 0 ? 1 : 0)))
    return;
  if (errno != ETOOMANYREFS) return;
  // The host has no room for the descriptor now (too many are on their way between processes of this user).
  copy = {};
  copy.result = SharingResult::kFull;
  copy.number = reply.number;
  SendPacket(control_.get(), &copy, sizeof(copy), {});
}

void WorkerProcess::Reach(uint32_t number) {
  if (number != 0) dialogue_.AskedToBeReached();
  const WorkerReach reach{number, 0};
  if (control_) send(control_.get(), &reach, sizeof reach, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void WorkerProcess::AnswerCheckpoint(const CheckpointAnswer& answer) {
  dialogue_.Answered();
  if (control_) send(control_.get(), &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void WorkerProcess::TellDevices() {
  dialogue_.AskedForDevices();
  const WorkerTellDevices tell{};
  if (control_) send(control_.get(), &tell, sizeof tell, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void WorkerProcess::SendPeers(const std::vector<WorkerPeer>& peers) {
  WorkerPeers answer{};
  answer.count = uint32_t(std::min<size_t>(peers.size(), kMaxPeers));
  std::copy_n(peers.begin(), answer.count, answer.peer);
  const size_t bytes = offsetof(WorkerPeers, peer) + answer.count * sizeof(WorkerPeer);
  send(control_.get(), &answer, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);  // a worker that does not read gets none
}

void WorkerProcess::End() {
  asked_to_end_ = true;
  Wind();
}

void WorkerProcess::Wind() {
  if (state_ == State::kEnding) return;
  state_ = State::kEnding;
  loop_.Unwatch(control_watch_);
  loop_.Cancel(control_pause_);
  listener_.OnEnding(*this);
  control_.reset();  // with whatever it has sent and nobody has read
  loop_.Cancel(timer_);
  timer_ = loop_.After(program_.end_limit, "a worker's time limit", [this] {
    log_->Write(LogLevel::kWarning,
                "worker " + std::to_string(pid_) + " did not end when asked; it is killed");
    Kill();
  });
}

void WorkerProcess::Kill() {
  End();
  loop_.Cancel(timer_);
  // Of one that has been reaped the number may be another's.
  kill_wanted_ = true;
  if (!reaped_ && pid_ > 0) program_.launcher->Kill(pid_);
}

void WorkerProcess::OnPidfd() {
  loop_.Unwatch(pidfd_watch_);
  program_.forget([found = self_] {
    if (*found != nullptr) (*found)->AskToReap();
  });
}

void WorkerProcess::AskToReap() {
  program_.launcher->Reap(pid_, [this, found = self_](int error, int status) {
    if (*found == nullptr) return;
    if (error == 0) return OnReaped(status);
    if (error != EAGAIN) return;  // the launcher is gone, and the daemon ends with it
    loop_.Cancel(timer_);
    timer_ = loop_.After(kReapAgain, "a worker's exit", [this] { AskToReap(); });
  });
}

void WorkerProcess::OnReaped(int status) {
  reaped_ = true;
  // What it said last, in this order: its reason to fail, then its output.
  if (control_) OnControl(false);
  OnOutput(false);
  pid_t gone = pid_;
  sandbox_.reset();
  loop_.Cancel(timer_);
  loop_.Cancel(control_pause_);
  loop_.Cancel(output_pause_);
  bool orderly = false;
  std::string how = "(pid " + std::to_string(gone) + ") " + DescribeExit(status, orderly);
  if (!violation_.empty()) {
    orderly = false;
    how = "(pid " + std::to_string(gone) + ") was ended, because it sent " + violation_;
  }
  state_ = State::kEnding;
  listener_.OnExit(*this, how, orderly);
  pid_ = -1;  // reaped: the number may already be somebody else's
}

}  // namespace causeway::daemon
