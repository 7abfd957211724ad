// SPDX-License-Identifier: Apache-2.0
// `causeway attach` and `detach` in Xen's domain 0. The domain is known to xenstore, which causewayd asks, so neither
// libvirt nor libxl takes part, and nothing of the domain's configuration changes (docs/xen.md).
#pragma once
#include <string>

#include "host_backend/command/attach/host_options.h"
#include "host_backend/common/result.h"

namespace causeway::command {

// The URI says xen:, or there is none and this is the domain that controls Xen.
bool IsXenHost(const HostOptions& host);

// The sentence that says what was done, or why nothing was.
Result<std::string> AttachXenDomain(const AttachOptions& options);
Result<std::string> DetachXenDomain(const DetachOptions& options);

}  // namespace causeway::command
