// SPDX-License-Identifier: Apache-2.0
// What a session tells its guest of the host's devices when it opens.
#pragma once
#include <vector>

#include "ivshmem_ring/messages/session_messages.h"

namespace causeway::host {

// All devices that the driver shows to this process, without the limits of an account; the driver is started.
// It is asked the first time alone, and all that the guest keeps for its whole life is taken from these
// answers: a worker calls this while it is a spare, because beside busy neighbours the driver's answers take
// long. Thread-safe.
const std::vector<DeviceDescription>& Descriptions();

}  // namespace causeway::host
