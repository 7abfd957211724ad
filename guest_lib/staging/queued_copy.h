// SPDX-License-Identifier: Apache-2.0
// Large copies of ordinary memory, for whose pieces the GPU itself waits
// (ivshmem_ring/messages/copy_messages.h): because of one posted record the worker hands the driver many
// pieces ahead. Threads of the program fill the staging slots of the pieces, or empty them, and tell the GPU
// by words, while the worker's threads sleep.
//
// The process makes one such copy at a time in each direction. If several threads copy, or a stream captures,
// the pieces go one by one (guest_lib/staging/staged_copy.h).
#pragma once
#include <cstdint>

#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::guest {

class Session;
struct LinearCopy;

// Whether the copy is large enough, and can be made this way.
bool MayQueue(Session& session, const LinearCopy& copy);
// Copies, and sets *moved to how many bytes it has copied from the beginning: all, unless other copies want
// the buffers meanwhile. The stream should have come to the copy, because the buffers lie idle until then.
CUresult CopyQueued(Session& session, const LinearCopy& copy, uint64_t* moved);

}  // namespace causeway::guest
