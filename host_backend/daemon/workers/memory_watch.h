// SPDX-License-Identifier: Apache-2.0
// What NVML says that each process holds of each GPU. A process with the library says it (WorkerMemoryUse),
// which runs only while the figures are wanted. The daemon's only thread calls all functions.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "host_backend/common/gpu_uuid.h"
#include "host_backend/daemon/workers/worker_process.h"

namespace causeway::daemon {

using MemoryRound = std::map<std::pair<pid_t, DeviceUuid>, uint64_t>;  // bytes; by this host's pids

class MemoryWatch final : public WorkerProcess::Listener {
 public:
  // `on_round` is called after every look at all GPUs.
  MemoryWatch(EventLoop& loop, const WorkerProgram& program,
              std::function<void(const MemoryRound&)> on_round);
  ~MemoryWatch() override;

  // Starts that process or ends it; it may be called again with the same value.
  void Want(bool wanted);

  void OnReady(WorkerProcess& worker, const WorkerReady& ready) override;
  void OnUsage(WorkerProcess&, const WorkerUsage&) override {}
  void OnSharing(WorkerProcess&, const SharingRequest&, WorkerFd) override {}
  bool MayMap(WorkerProcess&, const RegionMapping&) override { return false; }
  void OnMemoryUse(WorkerProcess& worker, const WorkerMemoryUse& use) override;
  void OnQuery(WorkerProcess&) override {}
  void OnExit(WorkerProcess& worker, const std::string& how, bool orderly) override;

 private:
  void Start();
  void Failed(const std::string& why);

  EventLoop& loop_;
  const WorkerProgram& program_;
  const std::function<void(const MemoryRound&)> on_round_;
  bool wanted_ = false;
  bool said_ = false;  // the log says already that there are no figures
  std::unique_ptr<WorkerProcess> process_;
  EventLoop::TimerId retry_ = 0;
  MemoryRound round_;
};

}  // namespace causeway::daemon
