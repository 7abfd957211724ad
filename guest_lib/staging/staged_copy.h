// SPDX-License-Identifier: Apache-2.0
// Copies between ordinary memory of the program and the device, in pieces through the session's staging
// buffers: while the device has some, this thread and helpers (guest_lib/process/copy_threads.h) copy others.
//
// Pieces of linear memory are posted, with a fence behind each (guest_lib/staging/posted_copy.h): the host
// starts them and waits for none. Where fences cannot be used, and for 3D copies, each piece is a request
// whose reply comes when the device is done. Any thread may call these functions; they send messages.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/maybe_result.h"

#include <functional>

#include "guest_lib/session/session.h"
#include "guest_lib/staging/copy_plan.h"
#include "guest_lib/staging/pieces.h"

namespace causeway::guest {

class ResolvedStream;

// Copies by requests. `put` writes the body of the message for one piece, which the host has copied when its
// reply comes. A call that may return once its source is taken (CapturesSource) does so.
CUresult CopyStaged(const HostRows& rows, bool to_device, CopyForm form, Op op, const Submission& submission,
                    const std::function<void(Writer&, const Piece&)>& put);

// Copies more than kMostUncut bytes by posted pieces. The device's side is known to lie in one allocation.
// None: nothing was sent, because it cannot be done now or with that memory (managed memory: waited_copy.h).
MaybeResult CopyPiecesByFences(LinearCopy* copy, const ResolvedStream& stream);

}  // namespace causeway::guest
