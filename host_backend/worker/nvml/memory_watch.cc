// SPDX-License-Identifier: Apache-2.0
// What NVML says of every process on every GPU, for the daemon, which loads no such library itself.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <cstring>

#include "host_backend/worker/nvml/nvml.h"
#include "host_backend/worker/start/worker_assignment.h"

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
    char uuid[16] = {};
    if (!ReadUuid(library.UuidOf(device).c_str(), uuid)) continue;
    for (const nvml::ProcessV2& process : library.ProcessesOf(device, nvml::ProcessMode::kCompute)) {
      if (process.pid == 0 || process.used_bytes == nvml::kNotAvailable) continue;
      WorkerMemoryUse use{process.pid, 0, process.used_bytes, {}};
      std::memcpy(use.uuid, uuid, sizeof use.uuid);
      if (!Tell(control, use)) return false;
      ++told;
    }
  }
  return Tell(control, WorkerMemoryUse{0, 0, told, {}});
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
  pollfd end{control, POLLIN, 0};
  while (TellRound(control, library, host)) {
    if (poll(&end, 1, kPauseMs) != 0) break;  // the daemon says nothing here: it has closed its end
  }
  return 0;
}

}  // namespace causeway::host
