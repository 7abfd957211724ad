// SPDX-License-Identifier: Apache-2.0
// Large copies of ordinary memory, whose pieces the GPU waits for by itself
// (ivshmem_ring/messages/copy_messages.h): one posted record has the worker hand the driver many pieces that
// are not there yet. Threads of the program fill the places of pieces, or empty them, and tell the GPU by
// words; nobody else is concerned with a piece, and the worker's threads sleep.
//
// One such copy of each direction at a time, alone in the process: where several copy, or a stream captures,
// the pieces go one by one (guest_lib/staging/staged_copy.h).
#pragma once
#include <cstdint>

#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::guest {

class Session;
struct LinearCopy;

// What is worth it, and where it can be done.
bool MayQueue(Session& session, const LinearCopy& copy);
// Copies the first *moved bytes: all, unless others want the buffers meanwhile. The stream should have come
// to the copy: until then its buffers would lie idle.
CUresult CopyQueued(Session& session, const LinearCopy& copy, uint64_t* moved);

}  // namespace causeway::guest
