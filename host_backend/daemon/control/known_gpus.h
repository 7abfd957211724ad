// SPDX-License-Identifier: Apache-2.0
// Whether GPUs that a VM is to have by their UUIDs are there.
#pragma once
#include <string>
#include <vector>

#include "host_backend/common/named_devices.h"

namespace causeway::daemon {

struct GpuAnswer {
  std::string refusal;  // one sentence: there is no such GPU; empty: none is known to be missing
  std::string note;     // one sentence: some could not be looked up; else empty
};

// `wanted`: GPU-... or MIG-..., and the driver also takes a beginning of such a name; `shown`: what the driver shows to a worker,
// none where no worker has said so. It shows no parts of GPUs (MIG) by their names, so these cannot be looked up.
GpuAnswer LookUpGpus(const std::vector<std::string>& wanted, const std::vector<NamedDevice>& shown);

}  // namespace causeway::daemon
