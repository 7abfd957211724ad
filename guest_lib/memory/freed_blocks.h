// SPDX-License-Identifier: Apache-2.0
// Memory of cuMemAlloc that the program has freed and may have again: the next allocation of the same size
// gets it without a message, as long as no message was sent in between.
//
// Nobody sees that it is held. It is held only when everything that this process has sent is done, which
// cuMemFree waits for anyway; and before any message at all, posted or waited for, all of it is freed on the
// host. So no kernel meets memory that the program has freed, freeing on the host waits for nothing, and
// memory that is short is not short because of this. Of a process that falls silent it is freed after a
// moment.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>
#include <optional>

#include "guest_lib/addresses/device_allocation.h"

namespace causeway::guest {

// What the free answers if the host need not be told of it; none: the host must be.
std::optional<CUresult> HoldFreedBlock(const DeviceAllocation& freed);
// What the allocation answers if memory that is held serves; none: the host must be asked.
std::optional<CUresult> TakeFreedBlock(CUdeviceptr* address, uint64_t bytes);

}  // namespace causeway::guest
