// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/pool/checkpoints.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::daemon {
namespace {

using std::chrono::milliseconds;

CheckpointAnswer Failed(CUresult result) {
  return {uint32_t(result), 0, 0};
}

// How much longer a lock may take; 0: for ever.
milliseconds LeftOf(const CheckpointOrder& order, Clock::time_point asked) {
  const auto passed = std::chrono::duration_cast<milliseconds>(Clock::now() - asked);
  return std::max(milliseconds(order.timeout_ms) - passed, milliseconds(1));
}

bool IsLong(CheckpointAction action) {
  return action == CheckpointAction::kCheckpoint || action == CheckpointAction::kRestore;
}

}  // namespace

Checkpoints::~Checkpoints() {
  for (Job& job : jobs_) Stop(job);
}

// Its number is its own until nothing uses it.
void Checkpoints::End(pid_t checkpointer) {
  launcher_->Kill(checkpointer);
  owner_.forget([this, checkpointer] { launcher_->Abandon(checkpointer); });
}

Checkpoints::JobRef Checkpoints::Find(uint64_t asker) {
  return std::find_if(jobs_.begin(), jobs_.end(),
                      [&](const Job& job) { return job.checkpoint.asker == asker; });
}

void Checkpoints::Ask(Checkpoint checkpoint) {
  jobs_.push_back({std::move(checkpoint)});
  owner_.loop.Later("checkpoints", [this] { Pump(); });
}

bool Checkpoints::MayBegin(const Job& job) const {
  size_t all = 0, of_scope = 0;
  for (const Job& other : jobs_) {
    if (other.number == 0) continue;
    ++all;
    of_scope += other.checkpoint.scope == job.checkpoint.scope ? 1 : 0;
    if (other.checkpoint.target == job.checkpoint.target) return false;
  }
  return job.number == 0 && all < kAtOnce && of_scope < kAtOnceOfScope;
}

void Checkpoints::Pump() {
  for (Job& job : jobs_) {
    if (MayBegin(job)) Begin(job);
  }
}

void Checkpoints::Limit(Job& job, Clock::duration limit) {
  owner_.loop.Cancel(job.timer);
  job.timer = owner_.loop.After(limit, "a checkpoint's limit", [this, asker = job.checkpoint.asker] {
    Finish(Find(asker), Failed(CUDA_ERROR_OPERATING_SYSTEM));
  });
}

void Checkpoints::Begin(Job& job) {
  if (++last_number_ == 0) ++last_number_;
  job.number = last_number_;
  Limit(job, kReachLimit);
  owner_.reach(job.checkpoint.target, job.number);
}

void Checkpoints::Reached(uint64_t target, uint32_t number) {
  const auto job = std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& each) {
    return each.number == number && each.checkpoint.target == target && !each.starting;
  });
  // One that came too late is nobody's; 0 is what waiting jobs have.
  if (number != 0 && job != jobs_.end() && !Start(*job)) Finish(job, Failed(CUDA_ERROR_OPERATING_SYSTEM));
}

bool Checkpoints::Start(Job& job) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  WorkerFd own(ends[0]);
  UniqueFd other(ends[1]);
  RefuseDescriptors(own.get());
  fcntl(own.get(), F_SETFL, O_NONBLOCK);
  const Checkpoint& checkpoint = job.checkpoint;
  CheckpointOrder order = checkpoint.order;
  order.guest_pid = 0;
  if (order.action == CheckpointAction::kLock) {
    const milliseconds left = order.timeout_ms != 0 ? LeftOf(order, job.asked) : kLockPiece;
    order.timeout_ms = uint32_t(std::min(left, kLockPiece).count());
  }
  if (!SendPacket(own.get(), &order, sizeof order, {})) return false;
  job.control = std::move(own);
  job.starting = true;
  Limit(job, IsLong(order.action) ? Clock::duration(kLongLimit) : Clock::duration(kShortLimit));
  launcher_->StartCheckpointer(
      checkpoint.target_pid, checkpoint.user, std::move(other),
      [this, number = job.number](int error, pid_t pid) { OnStarted(number, error, pid); });
  return true;
}

void Checkpoints::OnStarted(uint32_t number, int error, pid_t pid) {
  const auto job =
      std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& each) { return each.number == number; });
  if (job == jobs_.end()) {  // nobody wants it any more
    if (error == 0) End(pid);
    return;
  }
  if (error != 0) return Finish(job, Failed(CUDA_ERROR_OPERATING_SYSTEM));
  job->pid = pid;
  job->watch = owner_.loop.Watch(job->control.get(), EPOLLIN, "a checkpointer's answer",
                                 [this, asker = job->checkpoint.asker](uint32_t) { OnControl(asker); });
  owner_.started(pid, job->checkpoint.scope);
}

void Checkpoints::Stop(Job& job) {
  owner_.loop.Unwatch(job.watch);
  owner_.loop.Cancel(job.timer);
  job.control.reset();
  job.starting = false;
  if (job.pid >= 0) End(std::exchange(job.pid, -1));
  if (std::exchange(job.number, 0) != 0) owner_.reach(job.checkpoint.target, 0);
}

std::optional<CheckpointAnswer> Checkpoints::Read(const Job& job) const {
  std::array<std::byte, sizeof(CheckpointAnswer) + 1> packet;
  std::vector<WorkerFd> none;
  const ssize_t bytes = ReceiveFromStranger(job.control.get(), packet.data(), packet.size(), &none);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  CheckpointAnswer answer = Failed(CUDA_ERROR_OPERATING_SYSTEM);  // it died
  if (bytes == ssize_t(sizeof answer)) std::memcpy(&answer, packet.data(), sizeof answer);
  return answer;
}

void Checkpoints::OnControl(uint64_t asker) {
  const JobRef job = Find(asker);
  const auto answer = Read(*job);
  if (!answer) return;
  const CheckpointOrder& order = job->checkpoint.order;
  const bool again = answer->result == CUDA_ERROR_NOT_READY && order.action == CheckpointAction::kLock &&
                     (order.timeout_ms == 0 || LeftOf(order, job->asked) > milliseconds(1));
  if (!again) return Finish(job, *answer);
  Stop(*job);
  jobs_.splice(jobs_.end(), jobs_, job);
  Pump();
}

void Checkpoints::Finish(JobRef job, const CheckpointAnswer& answer) {
  Stop(*job);
  const uint64_t asker = job->checkpoint.asker;
  jobs_.erase(job);
  owner_.loop.Later("checkpoints", [this, asker, answer] {
    owner_.done(asker, answer);
    Pump();
  });
}

void Checkpoints::WorkerEnded(uint64_t number) {
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto next = std::next(job);
    if (job->checkpoint.asker == number) {
      Stop(*job);
      jobs_.erase(job);
      owner_.loop.Later("checkpoints", [this] { Pump(); });
    } else if (job->checkpoint.target == number) {
      const auto answer = job->control ? Read(*job) : std::nullopt;
      const bool done = answer && answer->result == CUDA_SUCCESS;
      Finish(job, done ? *answer : Failed(CUDA_ERROR_INVALID_VALUE));
    }
    job = next;
  }
}

}  // namespace causeway::daemon
