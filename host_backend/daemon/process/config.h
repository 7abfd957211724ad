// SPDX-License-Identifier: Apache-2.0
// The daemon's configuration file (TOML).
//
//   socket = "/run/causeway/causeway.sock"   socket_mode = "0660"   socket_group = "render"
//   container_folder = "/run/causeway/containers"
//   worker = "/usr/libexec/causeway/causeway-worker"                workers = "/usr/libexec/causeway/workers"
//   driver_library = "libcuda.so.1"
//   nvml_library = "libnvidia-ml.so.1"    nvml_shows_all = false    allow_pageable_access = false
//   spare_workers = 1    max_spare_workers = 16    guaranteed_spares = 0    local_region_mib = 4096    image_cache_mib = 256
//   compiled_kernels_mib = 1024
//   max_sessions = 64    reserved_sessions = 8    local_max_sessions = 64    admin_group = "causeway-admin"
//   state_folder = "/var/lib/causeway"   control_socket = "/run/causeway/causeway.sock.control"
//   control_group = "causeway"   attach_groups = ["libvirt-qemu", "qemu"]
//   keep_sessions_s = 60    wait_for_guests_s = 60    remote_compression = true
//   worker_users = [2000000000, 65536]    ids that workers become, one for each scope; count 0: none
//   log_level = "info"   log_file = "/var/log/causeway.log"
//   [[vm]]
//   name = "guest1"   region_file = "/dev/shm/causeway-guest1"   region_mib = 1024
//   xen_domain = "guest1"                 instead of region_file: memory that is granted to a domain of Xen
//   region_group = "libvirt-qemu"   region_user = 1000   max_sessions = 32   guaranteed_sessions = 2
//   doorbell_socket = "/run/causeway/doorbell-guest1"
//   host_memory_mib = 8192   max_threads = 8192   cpu_weight = 100   cpu_percent = 400
//   device_memory_mib = 16384   gpus = ["GPU-..."]
//   weight = 100   cap = 100   reserve = 0   class = "normal"
//   [[user]]
//   uid = 1000   own_spares = 1   weight, cap, reserve and class: as of a VM
//   [[gpu]]
//   uuid = "GPU-..."   turn_ms = 2        also at the top, of every other GPU
//   [tcp]
//   listen = "127.0.0.1:7470"   allow_plaintext_remote = false   bridge = "br0"
//   [tls]                                 read by causeway-tls, too
//   listen = ["0.0.0.0:7471", "[::]:7471"]   keys = "/etc/causeway/keys"
//   hand_over_socket = "/run/causeway/causeway.sock.tls"   user = "causeway-tls"
//   [[remote]]
//   name = "guest2"   max_sessions = 32
//   device_memory_mib, gpus, host_memory_mib, max_threads, cpu_weight, cpu_percent, weight, cap, reserve and
//   class: as of a VM; in [tcp] the same but reserve: of each peer; with local_ before them, but for reserve, at
//   the top: of each local user
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "host_backend/common/result.h"
#include "host_backend/common/shares/share_terms.h"
#include "host_backend/daemon/process/log.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::daemon {

// Of the users that workers become (scope_users.h): far above what distributions give to people, services,
// containers and subordinate ids; below 2^31.
inline constexpr uint32_t kFirstWorkerUser = 2'000'000'000;
inline constexpr uint32_t kWorkerUsers = 65'536;

inline constexpr uint64_t kMib = 1u << 20;
inline constexpr uint64_t kMinRegionMib = kMinRegionBytes / kMib;
inline constexpr uint64_t kMaxRegionMib = kMaxGranules * kGranuleBytes / kMib;
inline constexpr uint64_t kMaxGrantedMib = 2048;  // of a region for a Xen domain (docs/xen.md)
inline constexpr uint32_t kMaxSpareWorkers = 64;
inline constexpr uint32_t kUsualMostSpares =
    16;  // max_spare_workers, where any are kept and no more are asked for
inline constexpr uint64_t kMaxImageCacheMib = 1u << 16;
inline constexpr uint64_t kMaxCompiledKernelsMib = 1u << 20;
inline constexpr uint32_t kMaxSessions = 4096;
inline constexpr uint64_t kMaxDeviceMemoryMib = uint64_t{1} << 24;  // 16 TiB
inline constexpr size_t kMaxGpus = 16;
inline constexpr double kUsualTurnMs = 2;

// What one VM, local user or TCP peer may use of the host, where it has a cgroup (cgroups.h).
struct HostShare {
  uint64_t memory_mib = 0;    // host_memory_mib; 0: half of what the host has
  uint32_t threads = 8192;    // max_threads, of all its workers
  uint32_t cpu_weight = 100;  // against the other scopes' when processors are scarce
  uint32_t cpu_percent = 0;   // of one processor: 250 is two and a half; 0: no limit
};

// What one VM, local user or TCP peer may use.
struct GpuShare {
  uint64_t device_memory_mib = 0;  // of each GPU; 0: all of it
  std::vector<std::string> gpus;   // UUIDs; empty: all that the daemon may use
  HostShare host;
  ShareTerms terms;  // of the GPUs' time; a reservation has who is named alone
};

struct VmConfig {
  std::string name;
  std::string region_file;
  std::string xen_domain;  // its name; the region is granted to it, and region_file is empty
  uint64_t region_mib = 1024;
  std::string region_group;     // empty: the daemon's own
  uint32_t region_user = 0;     // the person that owns the file; 0: the daemon's own user
  std::string doorbell_socket;  // where QEMU connects in doorbell mode (docs/doorbells.md); empty: plain mode
  uint32_t max_sessions = kMaxSlots;
  uint32_t guaranteed_sessions = 0;  // no other scope can take them
  uint32_t own_spares = 0;           // nor these
  GpuShare share;
};

// Whether it has the form of a GPU's UUID as nvidia-smi shows it.
bool IsGpuUuid(const std::string& uuid);

struct TcpConfig {
  std::string address;        // numeric; empty: no TCP
  uint16_t port = 0;          // 0: any free one, see `causeway status`
  uint32_t max_sessions = 0;  // of each peer's address
  GpuShare share;             // of each peer's address
  std::string
      bridge;  // the one of this host's interfaces where peers come in; empty: any, of a loopback address
};

// Where remote guests come in (host_backend/tls).
struct TlsConfig {
  std::vector<std::pair<std::string, uint16_t>> listen;  // numeric addresses and ports; empty: no TLS
  std::string keys;                                      // the folder
  std::string hand_over;                                 // the socket between causeway-tls and causewayd
  std::string user;  // of causeway-tls; empty: root's, or the daemon's own
};

struct Config {
  std::string socket = kDefaultSocketPath;
  uint32_t socket_mode = 0660;
  std::string socket_group;
  std::string container_folder;  // with a socket for containers (docs/containers.md); empty: none
  std::string worker;            // as configured, or OwnWorker (worker_programs.h)
  std::string workers;  // folder of those of other releases; as configured, or `workers` beside causewayd
  std::string driver_library = "libcuda.so.1";
  std::string nvml_library;  // as configured, or where the driver library is
  bool nvml_shows_all = false;
  bool allow_pageable_access = false;  // of GPUs whose kernels reach all memory of their process (HMM, ATS)
  uint32_t spare_workers = 1;          // always kept
  uint32_t max_spare_workers = kUsualMostSpares;  // as many follow the demand
  uint64_t local_region_mib = 4096;
  uint64_t image_cache_mib = 256;          // of each VM, local user or TCP peer; 0: none
  uint64_t compiled_kernels_mib = 1024;    // of each, where workers have users of their own
  uint32_t max_sessions = 64;              // of all scopes
  uint32_t reserved_sessions = 0;          // for local users and TCP peers that have none yet
  uint32_t local_max_sessions = 0;         // of each local user
  uint32_t guaranteed_spares = 0;          // beyond spare_workers: not for scopes that start more than others
  std::string state_folder;                // what the control socket adds; empty: there is no such socket
  std::string control_socket;              // where `causeway attach` asks; beside `socket` if not configured
  std::string control_group;               // may use it, as root and the daemon's user do; empty: none
  std::vector<std::string> attach_groups;  // that exist; a region that is added belongs to one of them
  std::string admin_group;                 // sees all sessions, as root and the daemon's user do; empty: none
  std::pair<uint32_t, uint32_t> worker_users{kFirstWorkerUser, kWorkerUsers};  // first id and how many
  GpuShare local_share;                                                        // of each local user
  uint32_t keep_sessions_s =
      0;  // how long sessions wait for the next daemon where this one ends; 0: they end with it
  // How long a session over TCP or TLS waits for its guest when the connection is lost; 0: it ends.
  uint32_t wait_for_guests_s = 60;
  bool remote_compression = true;  // copies over TCP and TLS may be compressed where the link is slow
  LogLevel log_level = LogLevel::kInfo;
  std::string log_file;
  std::map<std::string, uint32_t> own_spares;    // of scopes (SessionPeer) that have any
  std::map<std::string, ShareTerms> user_terms;  // of scopes of local users that have a [[user]] table
  double turn_ms = kUsualTurnMs;                 // of each GPU that is not in gpu_turn_ms
  std::map<std::string, double> gpu_turn_ms;     // by UUID
  std::vector<VmConfig> vms;
  TcpConfig tcp;
  TlsConfig tls;
  std::vector<VmConfig> remotes;  // VMs that come by TLS alone: they have no region
};

// An error is one sentence that begins with "FILE:LINE: ". Unknown keys are errors.
Result<Config> LoadConfig(const std::string& path);
// A file with one [[vm]] table and nothing else: what AddedVmText makes.
Result<VmConfig> LoadAddedVm(const std::string& path);
// Such a file's text, of a VM that was added while the daemon ran: name, region, group, user and GPUs.
std::string AddedVmText(const VmConfig& vm);
// How many sessions can be guaranteed to one more VM of that configuration beside `others`.
uint32_t GuaranteeFor(const Config& config, const std::vector<VmConfig>& others, uint32_t max_sessions);

// The folder of the running program: where its companions are looked for.
std::string ProgramFolder();

}  // namespace causeway::daemon
