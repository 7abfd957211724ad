// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory that the program has freed and that is kept for the next allocation. An allocation of
// the same size from the same pool, in the same stream, comes after the free by the stream's order, so it can
// always have the memory, and the host need not know of either.
//
// The program cannot see that memory is kept: before any synchronous message all of it is freed on the host.
// So pools report what they would report otherwise, keeping is never the reason why an allocation fails, and
// a synchronisation finds freed what the program freed before it. Any thread may call these functions.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/maybe_result.h"

#include <cstdint>

#include "guest_lib/session/handles.h"

namespace causeway::guest {

// A number for the source of an allocation: two allocations that the driver takes from one pool have the
// same. A null pool means the device's current one. 0: a source of which nothing is kept.
uint64_t SourceOfPool(CUmemoryPool pool);
// To be called when the device's current pool may have become another one.
void NoteCurrentPoolChange();

// Keeps the memory, and returns what the free answers. None: it cannot be kept, and the host must be told.
MaybeResult HoldFreed(CUdeviceptr address, uint64_t bytes, uint64_t source, CUstream stream);
// Serves an allocation from kept memory, and returns its answer. None: none fits; the host must be asked.
MaybeResult TakeFreed(CUdeviceptr* address, uint64_t bytes, uint64_t source, CUstream stream);

// To be called when an allocation has failed. True: it might have succeeded if nothing had been kept, because
// memory was freed on the host later in its stream than by the program. That was waited for: try again.
bool WaitForLateFrees();

}  // namespace causeway::guest
