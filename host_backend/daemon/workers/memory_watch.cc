// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/workers/memory_watch.h"

namespace causeway::daemon {
namespace {

constexpr std::chrono::seconds kRetry{10};
constexpr size_t kMaxEntries = 65'536;  // of a round

}  // namespace

MemoryWatch::MemoryWatch(EventLoop& loop, const WorkerProgram& program,
                         std::function<void(const MemoryRound&)> on_round)
    : loop_(loop), program_(program), on_round_(std::move(on_round)) {}

MemoryWatch::~MemoryWatch() {
  loop_.Cancel(retry_);
}

void MemoryWatch::Want(bool wanted) {
  if (std::exchange(wanted_, wanted) == wanted) return;
  if (wanted && process_ == nullptr && retry_ == 0) Start();
  if (!wanted) {
    loop_.Cancel(retry_);
    if (process_ != nullptr) process_->Kill();  // OnExit follows
  }
}

void MemoryWatch::Start() {
  WorkerWish wish;
  wish.kind = SessionKind::kManagement;
  wish.watch_memory = true;
  round_.clear();
  auto started = WorkerProcess::Start(loop_, program_, wish, *this);
  if (!started.ok()) return Failed(started.error());
  process_ = std::move(started.value());
}

void MemoryWatch::Failed(const std::string& why) {
  if (!std::exchange(said_, true)) {
    LogWarning(
        "device_memory_mib holds for what sessions ask for and for what is seen when modules, contexts and "
        "limits "
        "are made, not for all that the driver takes for them: " +
        why);
  }
  if (!wanted_ || retry_ != 0) return;
  retry_ = loop_.After(kRetry, "the process that reads NVML", [this] {
    retry_ = 0;
    if (wanted_ && process_ == nullptr) Start();
  });
}

void MemoryWatch::OnReady(WorkerProcess&, const WorkerReady& ready) {
  if (ready.failed != 0) Failed(ready.text);
}

void MemoryWatch::OnMemoryUse(WorkerProcess&, const WorkerMemoryUse& use) {
  if (use.pid == 0) {
    on_round_(round_);
    round_.clear();
    return;
  }
  DeviceUuid uuid;
  std::copy(std::begin(use.uuid), std::end(use.uuid), uuid.begin());
  if (round_.size() < kMaxEntries) round_[{pid_t(use.pid), uuid}] += use.bytes;
}

void MemoryWatch::OnExit(WorkerProcess&, const std::string& how, bool) {
  // Destroyed once its own handler has returned.
  auto gone = std::make_shared<std::unique_ptr<WorkerProcess>>(std::move(process_));
  loop_.Later("the process that reads NVML", [this, gone, how] {
    gone->reset();
    if (wanted_ && process_ == nullptr && retry_ == 0) Failed("the process that reads NVML " + how + ".");
  });
}

}  // namespace causeway::daemon
