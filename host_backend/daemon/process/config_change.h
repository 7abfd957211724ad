// SPDX-License-Identifier: Apache-2.0
// What of a configuration can come into force while the daemon runs.
#pragma once
#include <string>
#include <vector>

#include "host_backend/daemon/process/config.h"

namespace causeway::daemon {

// Gives `next` the values of `running` for every key that only a start of the daemon reads, and returns the names
// of those that differed. VMs are not looked at: VmSet::Apply knows which of their keys it can change.
std::vector<std::string> KeepUntilStart(const Config& running, Config& next);

}  // namespace causeway::daemon
