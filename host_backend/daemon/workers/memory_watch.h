// SPDX-License-Identifier: Apache-2.0
// What NVML says that each process holds of each GPU, and how loaded the GPUs are. A process with the library says it
// (WorkerMemoryUse, WorkerDeviceUse), which runs only while the figures are wanted. The daemon's only thread calls all functions.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host_backend/daemon/workers/worker_process.h"
#include "ivshmem_ring/system/gpu_uuid.h"

namespace causeway::daemon {

using MemoryRound = std::map<std::pair<pid_t, DeviceUuid>, uint64_t>;  // bytes; by this host's pids

class MemoryWatch final : public WorkerProcess::Listener {
 public:
  // `on_round` is called after every look at all GPUs.
  MemoryWatch(EventLoop& loop, const WorkerProgram& program,
              std::function<void(const MemoryRound&)> on_round);
  ~MemoryWatch() override;

  // Starts that process or ends it, by what is wanted of it: what processes hold, and the GPUs. It may be called again with the same
  // values.
  void Want(bool memory, bool devices);
  // The GPUs as of the last look, which is some tenths of a second old at most. Null: not known, or not yet.
  const std::vector<WorkerDeviceUse>* devices() const { return devices_ ? &*devices_ : nullptr; }

  void OnReady(WorkerProcess& worker, const WorkerReady& ready) override;
  void OnUsage(WorkerProcess&, const WorkerUsage&) override {}
  void OnSharing(WorkerProcess&, const SharingRequest&, WorkerFd) override {}
  bool MayMap(WorkerProcess&, const RegionMapping&) override { return false; }
  void OnMemoryUse(WorkerProcess& worker, const WorkerMemoryUse& use) override;
  void OnDeviceUse(WorkerProcess& worker, const WorkerDeviceUse& use) override;
  void OnQuery(WorkerProcess&) override {}
  void OnExit(WorkerProcess& worker, const std::string& how, bool orderly) override;

 private:
  bool wanted() const { return memory_ || wants_devices_; }
  void Start();
  void AskForDevices();
  void Failed(const std::string& why);

  EventLoop& loop_;
  const WorkerProgram& program_;
  const std::function<void(const MemoryRound&)> on_round_;
  bool memory_ = false, wants_devices_ = false;  // wanted
  bool may_ask_ = false, asked_ = false;         // for devices: the process understands it; it was asked
  bool said_ = false, said_of_devices_ = false;  // the log says already that there are no figures
  std::unique_ptr<WorkerProcess> process_;
  EventLoop::TimerId retry_ = 0;
  MemoryRound round_;
  std::vector<WorkerDeviceUse> round_devices_;
  std::optional<std::vector<WorkerDeviceUse>> devices_;
};

}  // namespace causeway::daemon
