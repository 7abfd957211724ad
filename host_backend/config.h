// SPDX-License-Identifier: Apache-2.0
// The daemon's configuration file (TOML).
//
//   socket = "/run/causeway/causeway.sock"   socket_mode = "0660"   socket_group = "render"
//   worker = "/usr/libexec/causeway/causeway-worker"                driver_library = "libcuda.so.1"
//   nvml_library = "libnvidia-ml.so.1"    nvml_shows_all = false
//   spare_workers = 1    local_region_mib = 4096    max_sessions = 64
//   log_level = "info"   log_file = "/var/log/causeway.log"
//   [[vm]]
//   name = "guest1"   region_file = "/dev/shm/causeway-guest1"   region_mib = 1024
//   region_group = "libvirt-qemu"   max_sessions = 32
//   [tcp]
//   listen = "127.0.0.1:7470"   allow_plaintext_remote = false
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "host_backend/daemon_log.h"
#include "host_backend/result.h"
#include "ivshmem_ring/layout.h"
#include "ivshmem_ring/local_protocol.h"

namespace causeway::daemon {

inline constexpr uint64_t kMib = 1u << 20;
inline constexpr uint64_t kMinRegionMib = kMinRegionBytes / kMib;
inline constexpr uint64_t kMaxRegionMib = kMaxGranules * kGranuleBytes / kMib;
inline constexpr uint32_t kMaxSpareWorkers = 64;
inline constexpr uint32_t kMaxSessions = 4096;

struct VmConfig {
  std::string name;
  std::string region_file;
  uint64_t region_mib = 1024;
  std::string region_group;  // empty: the daemon's own
  uint32_t max_sessions = kMaxSlots;
};

struct TcpConfig {
  std::string address;  // numeric; empty: no TCP
  uint16_t port = 0;    // 0: any free one, see `causeway status`
};

struct Config {
  std::string socket = kDefaultSocketPath;
  uint32_t socket_mode = 0660;
  std::string socket_group;
  std::string worker;  // as configured, or beside causewayd
  std::string driver_library = "libcuda.so.1";
  std::string nvml_library;  // as configured, or where the driver library is
  bool nvml_shows_all = false;
  uint32_t spare_workers = 1;
  uint64_t local_region_mib = 4096;
  uint32_t max_sessions = 64;
  LogLevel log_level = LogLevel::kInfo;
  std::string log_file;
  std::vector<VmConfig> vms;
  TcpConfig tcp;
};

// An error is one sentence that begins with "FILE:LINE: ". Unknown keys are errors.
Result<Config> LoadConfig(const std::string& path);

// The folder of the running program: where its companions are looked for.
std::string ProgramFolder();

}  // namespace causeway::daemon
