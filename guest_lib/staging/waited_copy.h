// SPDX-License-Identifier: Apache-2.0
// Copies that the caller waits for, each one posted record, behind whose work the GPU writes a word that the
// caller looks for. Nobody on the host waits, and there is no reply. If the word does not come for long, the
// host is asked for the stream: so a long wait costs no processor, and a fault before the copy is this
// call's.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/maybe_result.h"

#include <cstdint>

#include "guest_lib/staging/copy_plan.h"

namespace causeway::guest {

class ResolvedStream;

// Each is of a device side that is known to be good. None: nothing was sent, it cannot be done so (now, or there). Copies
// from or to managed memory that migrates are the host's to answer: they are work on its pages themselves, whose end shows
// only once they have a number of their own (MessageInFlight).
//
// Memory that the device works on itself, up to kMostPinnedByFence.
MaybeResult CopyPinnedByFence(const LinearCopy& copy, const ResolvedStream& stream);
// Ordinary memory, up to kMostUncut.
MaybeResult CopyByFence(const LinearCopy& copy, const ResolvedStream& stream);

}  // namespace causeway::guest
