// SPDX-License-Identifier: Apache-2.0
// What NVML says of every process on every GPU, for the daemon, which loads no such library itself.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "host_backend/worker/nvml/nvml.h"
#include "host_backend/worker/start/worker_assignment.h"
#include "ivshmem_ring/system/gpu_uuid.h"

namespace causeway::host {
namespace {

constexpr int kPauseMs = 200;

bool Tell(int control, const WorkerMemoryUse& use) {
  return send(control, &use, sizeof use, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof use);
}

// False: the daemon is gone.
bool TellRound(int control, const NvmlLibrary& library, const NvmlHost& host) {
  uint64_t told = 0;
  for (uint32_t index = 0; index < host.device_count(); ++index) {
    const nvml::DeviceHandle device = host.DeviceAt(index);
    const DeviceUuid uuid = UuidOf(library.UuidOf(device));
    if (uuid == DeviceUuid{}) continue;
    for (const nvml::ProcessV2& process : library.ProcessesOf(device, nvml::ProcessMode::kCompute)) {
      if (process.pid == 0 || process.used_bytes == nvml::kNotAvailable) continue;
      WorkerMemoryUse use{process.pid, 0, process.used_bytes, {}};
      std::memcpy(use.uuid, uuid.data(), sizeof use.uuid);
      if (!Tell(control, use)) return false;
      ++told;
    }
  }
  return Tell(control, WorkerMemoryUse{0, 0, told, {}});
}

// What each GPU has that sessions may use. False: the daemon is gone.
bool TellDevices(int control, const NvmlLibrary& library, const NvmlHost& host) {
  for (uint32_t index = 0; index < host.device_count(); ++index) {
    const nvml::DeviceHandle device = host.DeviceAt(index);
    WorkerDeviceUse use{};
    nvml::Memory memory{};
    const DeviceUuid uuid = UuidOf(library.UuidOf(device));
    if (uuid == DeviceUuid{} || library.memory == nullptr ||
        static_cast<nvml::Return>(library.memory(device, &memory)) != nvml::Return::kSuccess)
      continue;
    use.memory_bytes = memory.total;
    use.free_bytes = std::min(memory.free, memory.total);
    // Two numbers: the part of the time in which kernels ran, and in which memory was read or written, of 100.
    uint32_t rates[2] = {};
    const bool known = library.nvmlDeviceGetUtilizationRates != nullptr &&
                       library.nvmlDeviceGetUtilizationRates(device, rates) == nvml::Return::kSuccess;
    use.load_percent = known ? std::min(rates[0], 100u) : kDeviceLoadUnknown;
    std::memcpy(use.uuid, uuid.data(), sizeof use.uuid);
    char name[96] = {};
    if (library.nvmlDeviceGetName != nullptr) library.nvmlDeviceGetName(device, name, sizeof name);
    std::memcpy(use.name, name, strnlen(name, sizeof use.name - 1));
    if (send(control, &use, sizeof use, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof use)) return false;
  }
  return true;
}

// Waits until the next round is due. False: the daemon is gone.
bool Pause(int control, bool* devices) {
  pollfd said{control, POLLIN, 0};
  if (poll(&said, 1, kPauseMs) == 0) return true;
  WorkerTellDevices tell{};
  if (recv(control, &tell, sizeof tell, 0) != static_cast<ssize_t>(sizeof tell)) return false;
  return *devices = true;
}

}  // namespace

int RunMemoryWatch(int control, const std::string& path) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_IGN);
  // No guest can say anything to it, and it must see all processes.
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  static NvmlLibrary library;
  NvmlHost host(library, [] { return std::vector<WorkerPeer>{}; });
  std::string error = library.Open(path);
  if (error.empty()) error = host.FindDevices(nullptr);
  WorkerReady ready{};
  if (!SendReady(control, error, path, &ready)) return 1;
  NvmlHost visible(library, [] { return std::vector<WorkerPeer>{}; });
  bool devices = false;
  const bool has_visible = visible.FindDevices(getenv("CUDA_VISIBLE_DEVICES")).empty();
  while ((!devices || !has_visible || TellDevices(control, library, visible)) &&
         TellRound(control, library, host)) {
    if (!Pause(control, &devices)) break;
  }
  return 0;
}

}  // namespace causeway::host
