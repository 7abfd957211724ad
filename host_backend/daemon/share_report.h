// SPDX-License-Identifier: Apache-2.0
// What `causeway status` says of shares: what each scope is to have, what it had on each GPU, and what enforces it there.
#pragma once
#include <string>
#include <vector>

#include "host_backend/common/json.h"
#include "host_backend/daemon/servers/services.h"
#include "host_backend/daemon/shares/share_status.h"

namespace causeway::daemon {

// Adds the lists "scopes", "shares" and "gpus". `scope`: of that one alone, unless it is empty. What was not measured is null.
void AddShares(Json& json, const Services& services, const std::vector<ShareStatus>& shares,
               const std::string& scope);

}  // namespace causeway::daemon
