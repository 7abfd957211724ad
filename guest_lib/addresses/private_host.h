// SPDX-License-Identifier: Apache-2.0
// Pinned memory for sessions that share no memory (TCP): ordinary memory of this process, which kernels
// cannot reach and which is copied like any other. Any thread may call these functions.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include "guest_lib/addresses/host_allocation.h"

namespace causeway::guest {

CUresult AllocatePrivateHost(void** address, uint64_t bytes, uint32_t flags);
CUresult FreePrivateHost(void* address);
bool FindPrivateHost(uint64_t address, HostAllocation* allocation);
void FreePrivateHostOf(const Object* context);

}  // namespace causeway::guest
