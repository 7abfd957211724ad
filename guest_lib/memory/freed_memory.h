// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory that the program has freed and may have again. An allocation of the same size from
// the same pool, ordered behind the free by the same stream, can always have it; the host need not know of
// either.
//
// Nobody sees that it is held: before any message that is waited for, everything held is freed on the host.
// So it is there for nobody but allocations that find nothing held, pools report what they would, memory that
// is short is not short because of this, and a synchronisation finds freed what the program freed before it.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>
#include <optional>

#include "guest_lib/session/handles.h"

namespace causeway::guest {

// What an allocation came from: equal for two that the driver takes from one pool. Null: the device's current
// pool. 0: from none that is followed here.
uint64_t SourceOfPool(CUmemoryPool pool);
// The device's current pool may be another from now on.
void NoteCurrentPoolChange();

// What the free answers if the host need not be told of it; none: the host must be.
std::optional<CUresult> HoldFreed(CUdeviceptr address, uint64_t bytes, uint64_t source, CUstream stream);
// What the allocation answers if memory that is held serves; none: the host must be asked.
std::optional<CUresult> TakeFreed(CUdeviceptr* address, uint64_t bytes, uint64_t source, CUstream stream);

// An allocation failed. True if it may not have failed without this file: memory was freed here later in its
// stream than the program did. Then that stream has been waited for, and it is worth another try.
bool WaitForLateFrees();

}  // namespace causeway::guest
