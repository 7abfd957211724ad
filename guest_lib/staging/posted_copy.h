// SPDX-License-Identifier: Apache-2.0
// Copies through staging buffers whose end a fence tells: a posted record names the buffer and a word, and
// the GPU writes a fence value into that word behind its copy. No thread of the host waits. If no thread of
// the program waits either, the buffer stays in flight ("lent") until the fence value has come. Any thread
// may call these functions; they may send messages.
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

// Posts a copy to the device of up to kBulkBytes, and takes its source at once. None: nothing was sent,
// because it cannot be done now (too many buffers are in flight, no shared memory, a device that writes no
// words, a capture). `alone`: it is done only if no buffer is in flight.
MaybeResult PostFromBuffer(const LinearCopy& copy, const ResolvedStream& stream, bool alone);

// Whether the GPU can write a fence value behind a copy in that stream.
bool MayLend(const ResolvedStream& stream);

// A staging buffer, or a part of it, and the copy for which it is in flight.
struct LentBuffer {
  uint32_t index = 0;   // of the buffer
  uint32_t offset = 0;  // of the part in the buffer, in bytes
  uint64_t mark = 0;    // the fence value to come; 0: the copy is over already
};
// Posts `copy` with the buffer's bytes, and sets buffer->mark. `settles`: the program may rely on a
// synchronous copy as soon as it is posted, so the host must finish it before it executes anything else.
CUresult PostLent(Session& session, CopyBody copy, const ResolvedStream& stream, const Submission& submission,
                  bool to_device, bool settles, LentBuffer* buffer);
// Whether the fence value has come.
bool IsBack(const LentBuffer& buffer);
// Polls for the fence value for as long as a waiting thread spins, and then with timed sleeps for more_us
// microseconds. False: it has not come.
bool AwaitBack(const LentBuffer& buffer, uint64_t more_us);
// At most so many buffers may be in flight with no thread waiting. The others serve copies that wait, because
// a stream may take any time, and a value may never come (a fault before it, a driver that cannot write it).
inline constexpr uint32_t kMostLent = kBulkBuffers / 2;
// Leaves the buffer in flight; the session has it again when its fence value has come. False: too many are.
bool LeaveLent(Session& session, const LentBuffer& buffer);

// LeaveBuffer does the same for a buffer that several fence values, each in a word of its own, must free.
struct AwaitedWord {
  const HotWord* word;
  uint64_t value;
};
inline constexpr uint32_t kMostAwaited = 2;
bool LeaveBuffer(Session& session, uint32_t index, std::span<const AwaitedWord> awaited);

}  // namespace causeway::guest
