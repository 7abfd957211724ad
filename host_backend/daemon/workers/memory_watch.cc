// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/workers/memory_watch.h"

namespace causeway::daemon {
namespace {

constexpr std::chrono::seconds kRetry{10};
constexpr size_t kMaxEntries = 65'536;  // of a round
constexpr size_t kMaxDevices = 1024;

}  // namespace

MemoryWatch::MemoryWatch(EventLoop& loop, const WorkerProgram& program,
                         std::function<void(const MemoryRound&)> on_round)
    : loop_(loop), program_(program), on_round_(std::move(on_round)) {}

MemoryWatch::~MemoryWatch() {
  loop_.Cancel(retry_);
}

void MemoryWatch::Want(bool memory, bool devices) {
  const bool before = wanted();
  memory_ = memory;
  wants_devices_ = devices;
  if (devices) AskForDevices();
  if (before == wanted()) return;
  if (wanted() && process_ == nullptr && retry_ == 0) Start();
  if (!wanted()) {
    loop_.Cancel(retry_);
    if (process_ != nullptr) process_->Kill();  // OnExit follows
  }
}

void MemoryWatch::AskForDevices() {
  if (may_ask_ && process_ != nullptr && !std::exchange(asked_, true)) process_->TellDevices();
}

void MemoryWatch::Start() {
  WorkerWish wish;
  wish.kind = SessionKind::kManagement;
  wish.watch_memory = true;
  round_.clear();
  round_devices_.clear();
  auto started = WorkerProcess::Start(loop_, program_, wish, *this);
  if (!started.ok()) return Failed(started.error());
  process_ = std::move(started.value());
}

void MemoryWatch::Failed(const std::string& why) {
  if (memory_ && !std::exchange(said_, true)) {
    LogWarning(
        "device_memory_mib holds for what sessions ask for and for what is seen when modules, contexts and "
        "limits "
        "are made, not for all that the driver takes for them: " +
        why);
  }
  if (!memory_ && !std::exchange(said_of_devices_, true))
    LogWarning("guests that choose among hosts are not told how loaded the GPUs of this one are: " + why);
  if (!wanted() || retry_ != 0) return;
  retry_ = loop_.After(kRetry, "the process that reads NVML", [this] {
    retry_ = 0;
    if (wanted() && process_ == nullptr) Start();
  });
}

void MemoryWatch::OnReady(WorkerProcess&, const WorkerReady& ready) {
  if (ready.failed != 0) return Failed(ready.text);
  may_ask_ = (ready.features & kTellsDevices) != 0;
  if (wants_devices_) AskForDevices();
}

void MemoryWatch::OnDeviceUse(WorkerProcess&, const WorkerDeviceUse& use) {
  if (round_devices_.size() < kMaxDevices) round_devices_.push_back(use);
}

void MemoryWatch::OnMemoryUse(WorkerProcess&, const WorkerMemoryUse& use) {
  if (use.pid == 0) {
    on_round_(round_);
    round_.clear();
    if (!round_devices_.empty()) devices_ = std::move(round_devices_);
    round_devices_.clear();
    return;
  }
  DeviceUuid uuid;
  std::copy(std::begin(use.uuid), std::end(use.uuid), uuid.begin());
  if (round_.size() < kMaxEntries) round_[{pid_t(use.pid), uuid}] += use.bytes;
}

void MemoryWatch::OnExit(WorkerProcess&, const std::string& how, bool) {
  // Destroyed once its own handler has returned.
  devices_.reset();
  may_ask_ = asked_ = false;
  auto gone = std::make_shared<std::unique_ptr<WorkerProcess>>(std::move(process_));
  loop_.Later("the process that reads NVML", [this, gone, how] {
    gone->reset();
    if (wanted() && process_ == nullptr && retry_ == 0) Failed("the process that reads NVML " + how + ".");
  });
}

}  // namespace causeway::daemon
