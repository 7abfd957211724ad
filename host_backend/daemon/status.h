// SPDX-License-Identifier: Apache-2.0
// The daemon's state as JSON: what `causeway status --json` prints.
#pragma once
#include <string>
#include <vector>

#include "host_backend/daemon/servers/services.h"
#include "host_backend/daemon/shares/share_status.h"

namespace causeway::daemon {

// What only the daemon itself and its servers know.
struct StatusReport {
  Clock::time_point started{};
  std::string tcp;  // where TCP sessions are accepted; empty: nowhere
  std::vector<SessionStatus> sessions;
  std::vector<RegionStatus> regions;
  std::vector<ShareStatus> shares;
};

// That, and what pool, event loop, counters and configuration hold now. A client that may see only one scope
// gets that scope's sessions, accounts and own spares, and neither regions nor sums over all scopes; `scope`
// empty: everything. Of the event loop's thread.
std::string StatusJson(const Services& services, const StatusReport& report, const std::string& scope);

}  // namespace causeway::daemon
