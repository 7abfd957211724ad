// SPDX-License-Identifier: Apache-2.0
// Managed memory of either form (docs/managed_memory.md): coherent, which lies in the region, and migrating,
// which is the driver's own (guest_lib/managed/pager.h). Any thread may call these functions, without a lock
// of this library's held: both take locks, and FreeManaged sends messages and waits for the replies.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

#include "guest_lib/addresses/host_allocation.h"

namespace causeway::guest {

// Fills *allocation with the managed allocation that holds the address. False: none does, and what
// *allocation holds means nothing. __managed__ variables are no allocations.
bool FindManaged(uint64_t address, HostAllocation* allocation);
// Waits for the whole device, as cuMemFree does, then frees the allocation, which FindManaged has found.
// Returns what cuMemFree is to answer. CUDA_ERROR_INVALID_VALUE: another thread has freed it first. After any
// other error the memory is still allocated.
CUresult FreeManaged(const HostAllocation& allocation);

}  // namespace causeway::guest
