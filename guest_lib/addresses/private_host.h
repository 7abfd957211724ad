// SPDX-License-Identifier: Apache-2.0
// Pinned memory for sessions that share no memory (TCP): ordinary memory of this process, which kernels
// cannot reach and copies treat as such. Any thread may call these functions; they send no messages.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include "guest_lib/addresses/host_allocation.h"

namespace causeway::guest {

// CUDA_ERROR_OUT_OF_MEMORY if there is none. `flags` are cuMemHostAlloc's, and only kept.
CUresult AllocatePrivateHost(void** address, uint64_t bytes, uint32_t flags);
// CUDA_ERROR_INVALID_VALUE if no allocation begins there.
CUresult FreePrivateHost(void* address);
// The allocation that holds the address; false if there is none.
bool FindPrivateHost(uint64_t address, HostAllocation* allocation);
// Frees all that was allocated while that context was current.
void FreePrivateHostOf(const Object* context);

}  // namespace causeway::guest
