// SPDX-License-Identifier: Apache-2.0
// The daemon's state as JSON: what `causeway status --json` prints.
#pragma once
#include <string>
#include <vector>

#include "host_backend/daemon/servers/services.h"
#include "host_backend/daemon/sharing/image_cache.h"

namespace causeway::daemon {

struct StatusReport {
  Clock::duration uptime{};
  std::string socket;
  std::string tcp;             // empty: not served
  std::string driver_library;  // as configured
  std::string driver;          // the path that a worker loaded
  uint32_t driver_version = 0;
  uint32_t device_count = 0;
  uint32_t spare_wanted = 0;
  size_t spare_ready = 0;
  std::vector<WorkerPool::OwnSpareStatus> own_spares;
  size_t starting = 0;
  size_t workers = 0;
  std::string worker_problem;
  ImageCacheStatus images;
  Lateness::Summary late, busy, unscheduled;  // of the event loop
  bool tells_unscheduled = false;
  std::vector<LoopWork::Kind> longest_work;
  Counters counters;
  std::vector<SessionStatus> sessions;
  std::vector<RegionStatus> regions;
  std::vector<AccountStatus> accounts;
  bool of_all = true;  // false: of one scope only
};

// Removes what a client that may see only its own scope is not told.
void KeepScope(StatusReport& report, const std::string& scope);

std::string StatusJson(const StatusReport& report);

}  // namespace causeway::daemon
