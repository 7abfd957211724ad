// SPDX-License-Identifier: Apache-2.0
// Copies through bulk buffers that the GPU tells the end of: a posted record names the buffer and a word, and
// the GPU writes the word behind its copy. Nobody on the host waits for it. Copies of ordinary memory to the
// device that nobody waits for leave their buffer lent until then.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/maybe_result.h"

#include <cstdint>
#include <span>

#include "guest_lib/staging/copy_plan.h"
#include "ivshmem_ring/messages/session_messages.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/record.h"

namespace causeway::guest {

class ResolvedStream;
class Session;
struct Submission;

// To the device, up to one buffer; takes the source at once. None: nothing was sent, it cannot be done so now (too many
// buffers are in flight, no shared memory, a device that writes no words, a capture). `alone`: only if none is in flight.
MaybeResult PostFromBuffer(const LinearCopy& copy, const ResolvedStream& stream, bool alone);

// Whether the GPU can tell the end of a copy on that stream.
bool MayLend(Session& session, const ResolvedStream& stream);

// A bulk buffer, or a part of it, and the copy that it was lent to.
struct LentBuffer {
  uint32_t index = 0;
  uint32_t offset = 0;
  uint64_t mark = 0;  // what its word will say; 0: the copy is over already
};
// Posts the copy of `bytes` from `offset` of the buffer on, to or from `device`. `settles`: others may rely
// on a synchronous one as soon as it is posted, so that the host must be done with it before anything else.
CUresult PostLent(Session& session, CopyBody copy, const ResolvedStream& stream, const Submission& submission,
                  bool to_device, bool settles, LentBuffer* buffer);
bool IsBack(const LentBuffer& buffer);
// Looks for it for as long as a waiting thread spins, then now and then, for so long.
bool AwaitBack(const LentBuffer& buffer, uint64_t more_us);
// The session has the buffer again when it is back. At most so many may be left so: the others serve copies
// that wait, for a stream may hold a lent buffer for as long as it likes, and a mark that never comes (a
// fault before it, a driver that cannot) for good.
inline constexpr uint32_t kMostLent = kBulkBuffers / 2;
// False: too many are.
bool LeaveLent(Session& session, const LentBuffer& buffer);

// The same of a buffer in which several pieces end, each with a word of its own.
struct AwaitedWord {
  const HotWord* word;
  uint64_t value;
};
inline constexpr uint32_t kMostAwaited = 2;
bool LeaveBuffer(Session& session, uint32_t index, std::span<const AwaitedWord> awaited);

}  // namespace causeway::guest
