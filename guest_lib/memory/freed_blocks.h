// SPDX-License-Identifier: Apache-2.0
// Memory of cuMemAlloc that the program has freed and that is kept for the next allocation of the same size,
// which gets it without a message, as long as no message was sent in between.
//
// The program cannot see that memory is kept. It is kept only when everything that this process has sent is
// done, for which cuMemFree waits anyway; and before any message at all, asynchronous or synchronous, all of
// it is freed on the host. So no kernel can use memory that the program has freed, freeing on the host waits
// for nothing, and keeping is never the reason why an allocation fails. If the process sends nothing for a
// moment, a thread frees it. Any thread may call these functions.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/maybe_result.h"

#include <cstdint>

#include "guest_lib/addresses/device_allocation.h"

namespace causeway::guest {

// Keeps the memory, and returns what the free answers. None: it cannot be kept, and the host must be told.
MaybeResult HoldFreedBlock(const DeviceAllocation& freed);
// Serves an allocation from kept memory, and returns its answer. None: the host must be asked.
MaybeResult TakeFreedBlock(CUdeviceptr* address, uint64_t bytes);

}  // namespace causeway::guest
