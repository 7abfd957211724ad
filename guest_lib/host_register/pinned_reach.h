// SPDX-License-Identifier: Apache-2.0
// Lets the device reach pinned memory where the session shares none (TCP). Most of such memory is only ever copied from and to, which
// needs no address on the device. So a block stays this process's own until the program first names it as the device's: it makes the block
// with the flag DEVICEMAP, asks for the device's address, gives it to a kernel or a graph, or fills it. Then the host gets pages at the same
// address, and bytes are exchanged as those of managed memory are (guest_lib/managed/pager.h): before work starts, and when the program looks
// at them afterwards. Registered memory comes into the device's reach in the same way (ReachRegistered in host_register.h). Pages of a memory
// file then replace those on which it alone has bytes, and the rest is compared (guest_lib/managed/compared_bytes.h).
//
// What a program hides from this library, addresses of pinned memory inside of memory that a kernel reads, is not
// noticed: such a kernel fails with an illegal address (docs/remote.md).
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

namespace causeway::guest {

struct Object;

// These send messages and wait for the answers; any thread, without a lock of this library's held.

// Lets the device reach the block that holds the address, or ends there, pinned or registered; there need not be one. CUDA_ERROR_NOT_SUPPORTED: the
// device cannot reach it. CUDA_ERROR_NOT_READY: for ten seconds a copy of another thread that uses the block has not ended.
CUresult ReachPinned(uint64_t address);
// Frees a block; the caller has waited for all work that uses it. CUDA_ERROR_INVALID_VALUE if none begins there.
CUresult FreePinned(uint64_t address);
// The end of a context takes two steps. Before it ends, LeavePinnedOf waits for its work and ends the device's reach of all its
// blocks, since the registrations on the host end with the context; the device may reach memory of a pool in another context later. After
// it has ended, FreePinnedOf frees the blocks, except staging buffers, which guest_lib/graph/graph_copy.cc frees.
void LeavePinnedOf(Object* context);
void FreePinnedOf(const Object* context);

}  // namespace causeway::guest
