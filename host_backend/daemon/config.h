// SPDX-License-Identifier: Apache-2.0
// The daemon's configuration file (TOML).
//
//   socket = "/run/causeway/causeway.sock"   socket_mode = "0660"   socket_group = "render"
//   worker = "/usr/libexec/causeway/causeway-worker"                driver_library = "libcuda.so.1"
//   nvml_library = "libnvidia-ml.so.1"    nvml_shows_all = false
//   spare_workers = 1    local_region_mib = 4096    max_sessions = 64    image_cache_mib = 256
//   worker_users = [2000000000, 65536]    ids that workers become, one for each VM, user or peer; count 0:
//   none log_level = "info"   log_file = "/var/log/causeway.log"
//   [[vm]]
//   name = "guest1"   region_file = "/dev/shm/causeway-guest1"   region_mib = 1024
//   region_group = "libvirt-qemu"   max_sessions = 32   device_memory_mib = 16384   gpus = ["GPU-..."]
//   [tcp]
//   listen = "127.0.0.1:7470"   allow_plaintext_remote = false
//   device_memory_mib and gpus: as of a VM; local_device_memory_mib and local_gpus: of each local user
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "host_backend/daemon/log.h"
#include "host_backend/daemon/scope_users.h"
#include "host_backend/result.h"
#include "ivshmem_ring/layout.h"
#include "ivshmem_ring/local_protocol.h"

namespace causeway::daemon {

inline constexpr uint64_t kMib = 1u << 20;
inline constexpr uint64_t kMinRegionMib = kMinRegionBytes / kMib;
inline constexpr uint64_t kMaxRegionMib = kMaxGranules * kGranuleBytes / kMib;
inline constexpr uint32_t kMaxSpareWorkers = 64;
inline constexpr uint64_t kMaxImageCacheMib = 1u << 16;
inline constexpr uint32_t kMaxSessions = 4096;
inline constexpr uint64_t kMaxDeviceMemoryMib = uint64_t{1} << 24;  // 16 TiB
inline constexpr size_t kMaxGpus = 16;

// What one VM, local user or TCP peer may use.
struct GpuShare {
  uint64_t device_memory_mib = 0;  // of each GPU; 0: all of it
  std::vector<std::string> gpus;   // UUIDs; empty: all that the daemon may use
};

struct VmConfig {
  std::string name;
  std::string region_file;
  uint64_t region_mib = 1024;
  std::string region_group;  // empty: the daemon's own
  uint32_t max_sessions = kMaxSlots;
  GpuShare share;
};

struct TcpConfig {
  std::string address;  // numeric; empty: no TCP
  uint16_t port = 0;    // 0: any free one, see `causeway status`
  GpuShare share;       // of each peer's address
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
  uint64_t image_cache_mib = 256;  // of each VM, local user or TCP peer; 0: none
  uint32_t max_sessions = 64;
  std::pair<uint32_t, uint32_t> worker_users{kFirstWorkerUser, kWorkerUsers};  // first id and how many
  GpuShare local_share;                                                        // of each local user
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
