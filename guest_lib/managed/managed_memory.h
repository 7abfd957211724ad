// SPDX-License-Identifier: Apache-2.0
// Managed memory of either form: coherent (in the shared region) and migrating (guest_lib/managed/pager.h).
// Any thread may call these; they take no lock of the caller's.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

#include "guest_lib/addresses/host_allocation.h"

namespace causeway::guest {

// The allocation that holds the address; false if none does.
bool FindManaged(uint64_t address, HostAllocation* allocation);
// What cuMemFree answers for it, after the whole device was waited for.
CUresult FreeManaged(const HostAllocation& allocation);

}  // namespace causeway::guest
