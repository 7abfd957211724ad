// SPDX-License-Identifier: Apache-2.0
// What the daemon's servers share, and how they report a session.
#pragma once
#include <optional>
#include <string>

#include "host_backend/daemon/loop/event_loop.h"
#include "host_backend/daemon/pool/worker_pool.h"
#include "host_backend/daemon/process/config.h"
#include "host_backend/daemon/process/worker_programs.h"
#include "host_backend/daemon/region/zeroing.h"
#include "host_backend/daemon/scopes/scopes.h"
#include "host_backend/daemon/shares/share_settings.h"
#include "ivshmem_ring/messages/local_protocol.h"

namespace causeway::daemon {

struct Counters {
  uint64_t sessions = 0;  // ever served
  uint64_t refused = 0;
  uint64_t worker_deaths = 0;  // while serving
  uint64_t violations = 0;     // malformed words and records from guests
};

class FlightStore;
class DoorbellWatch;
class IdleWatch;

struct Services {
  EventLoop& loop;
  const Config& config;
  WorkerPool& pool;
  Counters& counters;
  FlightStore& flights;
  IdleWatch& idle_watch;
  DoorbellWatch& doorbell_watch;
  const WorkerPrograms& workers;
  Scopes& scopes;
  Zeroing& zeroing;
  Vault& vault;
  ShareSettings& share_settings;
};

// A session's worker has died while it served.
inline void CountWorkerDeath(const Services& services, Scope& scope) {
  ++services.counters.worker_deaths;
  ++scope.worker_deaths;
}

inline SessionPeer PeerOf(const Scope& scope, const GpuShare& share, uint32_t pid, uint32_t uid,
                          uint32_t stated_pid) {
  return {scope.name,
          pid,
          uid,
          stated_pid,
          share.device_memory_mib,
          scope.share(),
          scope.log,
          scope.pace,
          scope.family->closing,
          &share.host,
          &share.gpus};
}

// The two answers to a client's first message.
inline LocalReply Accepted(uint64_t region_bytes) {
  return {kLocalMagic, 1, 0, region_bytes, ""};
}
inline LocalReply Refusal(const std::string& sentence) {
  LocalReply reply{kLocalMagic, 0, 0, 0, ""};
  sentence.copy(reply.text, sizeof(reply.text) - 1);
  return reply;
}

struct SessionStatus {
  uint64_t number = 0;    // of all that this daemon has served; 0: not yet
  const char* kind = "";  // "vm", "local", "tcp"
  std::string scope;
  std::string vm;
  int64_t slot = -1;
  uint32_t session = 0;
  uint32_t pid = 0;  // as the guest's kernel says; of the host where the session is local
  uint32_t uid = 0;
  std::string release;  // of the guest's library; empty: it has not said it yet
  const char* state = "";
  Clock::time_point opened{};
  pid_t worker_pid = 0;
  WorkerUsage usage{};
  MemoryBytes memory{};
  // Of a remote session: whether both sides may compress what copies send; they do where that pays.
  std::optional<bool> compression{};
  int64_t queued_bytes = -1;  // in the submission queue, not executed yet; -1: over TCP there is none
};

struct RegionStatus {
  std::string vm;
  std::string file;
  std::string problem;  // empty while it is served
  uint64_t region_bytes = 0;
  uint32_t slots = 0;
  uint32_t slots_in_use = 0;
  uint32_t slices = 0;
  uint32_t slices_free = 0;
  uint64_t guest_epoch = 0;
  bool doorbell = false;  // the VM has one (docs/doorbells.md)
  bool polled = true;     // nothing rings for it: the daemon looks at it now and then
};

}  // namespace causeway::daemon
