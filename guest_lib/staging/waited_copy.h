// SPDX-License-Identifier: Apache-2.0
// Copies that the caller waits for: each is one posted record with a fence behind it, whose fence value the
// caller polls. No thread of the host waits, and there is no reply. If the value does not come for long, the
// host is asked for the stream, so that a long wait costs no processor time and a fault before the copy is
// this call's error. Any thread may call these functions.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/maybe_result.h"

#include "guest_lib/staging/copy_plan.h"

namespace causeway::guest {

class ResolvedStream;

// The device's side is known to lie in one allocation. None: nothing was sent, because it cannot be done now
// or with that memory. The host answers copies from or to managed memory that migrates: they are work on its
// pages themselves, and have a number, by which their end is known, only when they are sent
// (MessageInFlight).
//
// Pinned memory, up to kMostPinnedByFence bytes.
MaybeResult CopyPinnedByFence(const LinearCopy& copy, const ResolvedStream& stream);
// Ordinary memory, up to kMostUncut bytes.
MaybeResult CopyByFence(const LinearCopy& copy, const ResolvedStream& stream);

}  // namespace causeway::guest
