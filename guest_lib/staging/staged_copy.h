// SPDX-License-Identifier: Apache-2.0
// Copies between ordinary memory of the program and the device, in pieces through the session's bulk buffers:
// while the device has some pieces, this thread and helpers (guest_lib/process/copy_threads.h) copy others.
//
// Pieces of linear memory are posted, and the GPU tells by words when it is done with them
// (guest_lib/staging/posted_copy.h): the host starts them and waits for none. Where it cannot tell, and for
// boxes, each piece is a request whose reply comes when the device is done.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/maybe_result.h"

#include <cstddef>
#include <cstdint>
#include <functional>

#include "guest_lib/session/session.h"
#include "guest_lib/staging/copy_plan.h"
#include "guest_lib/staging/pieces.h"

namespace causeway::guest {

class ResolvedStream;

// `put` writes the body of the message for one piece. What the message asks of the host is done when its
// reply comes. Does not wait for the stream where the source is captured: `form` kAsynchronous, to the
// device, small enough (CapturesSource).
CUresult CopyStaged(const HostRows& rows, bool to_device, CopyForm form, Op op, const Submission& submission,
                    const std::function<void(Writer&, const Piece&)>& put);

// Of more than kMostUncut, to or from a device side that is known to be good; the GPU tells by fences how far it is. None:
// nothing was sent, it cannot be done so (now, or there; managed memory: waited_copy.h).
MaybeResult CopyPiecesByFences(LinearCopy* copy, const ResolvedStream& stream);

}  // namespace causeway::guest
