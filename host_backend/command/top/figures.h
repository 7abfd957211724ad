// SPDX-License-Identifier: Apache-2.0
// What the daemon's status says of sessions and scopes, as numbers, and what two such readings say of the time between them.
// One thread uses all this.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host_backend/command/top/shares.h"
#include "host_backend/common/result.h"
#include "host_backend/common/shares/account_page.h"

namespace causeway::command {

struct SessionFigures {
  uint64_t number = 0;
  std::string scope, state;
  uint64_t pid = 0;
  pid_t worker_pid = 0;
  double age_s = 0;
  uint64_t calls = 0, errors = 0, to_device_bytes = 0, to_host_bytes = 0;
  uint64_t memory_bytes = 0;         // of all kinds
  std::optional<double> queue_fill;  // of the submission queue, 0 to 1; nothing over TCP
  std::optional<double> gpu;         // of one GPU's time, 0 to 1 (gpu_times.h); nothing where it is not known
};

struct StatusFigures {
  std::string version, driver;
  double uptime_s = 0;
  uint64_t devices = 0, workers = 0, spares_ready = 0, worker_deaths = 0, refused = 0;
  std::vector<SessionFigures> sessions;
  ShareReport shares;
};

// Of the text of `causeway status --json`.
Result<StatusFigures> ReadFigures(const std::string& status);

// One row: a session, or all of a scope's.
struct Row {
  std::string scope;
  uint64_t number = 0;  // 0: a scope
  uint64_t sessions = 0;
  uint64_t pid = 0;
  std::string state;
  double age_s = 0;
  // Nothing: the session was not there before. The last two in bytes.
  std::optional<double> calls_per_s, errors_per_s, to_device_per_s, to_host_per_s;
  std::optional<double> gpu, queue_fill;
  uint64_t memory_bytes = 0, calls = 0, errors = 0;
};

// The sessions of the second reading, with what they did since the first, `seconds` before.
std::vector<Row> SessionRows(const StatusFigures& before, const StatusFigures& now, double seconds);
// Sums of them, by scope; the fill is that of the fullest queue.
std::vector<Row> ScopeRows(const std::vector<Row>& sessions);

}  // namespace causeway::command
