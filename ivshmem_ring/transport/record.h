// SPDX-License-Identifier: Apache-2.0
// One message: a header and a body of packed values (ivshmem_ring/protocol/wire.h). The same bytes lie in a
// ring or follow each other on a TCP connection.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ivshmem_ring/protocol/handle.h"

namespace causeway {

struct RecordHeader {
  uint32_t bytes;          // header and body; in a ring the record takes this rounded up to kRecordAlign
  uint16_t op;             // Op, or kPadOp
  uint16_t flags;          // RecordFlags | capture mode
  uint64_t sequence;       // records before this one in its ring; the reader expects exactly this
  WireHandle context;      // request: the caller's current context, 0 = none
  uint64_t main_sequence;  // channel request: main records that must have been executed before it runs
                           // posted: WireHandle of the one stream that it works on; 0: anything, anywhere
  uint64_t bulk_offset;    // request: where its bulk buffer lies in the region; over TCP a number the reply
                           // repeats. posted: WireHandle of an event that it records or waits for
  uint32_t bulk_bytes;     // request: size lent to the host; reply: size written
  uint32_t result;         // reply: CUresult. posted: a number of the thread (FlightThread())
};
static_assert(sizeof(RecordHeader) == 48);

enum RecordFlags : uint16_t {
  kCaptureModeMask = 0x3,  // the caller's CUstreamCaptureMode
  kBulkToHost = 0x4,       // the bulk buffer carries data to the host
  kBulkToGuest = 0x8,      // the host fills the bulk buffer
  kOutputPending = 0x10,   // reply: kernels have printed; fetch it before the call returns
  kResultWanted = 0x20,    // posted: the caller asks for its result with Op::kPostedResult
  kLargeRequest = 0x40,    // the record says how many bytes of the bulk buffer are the request's body
  kLargeReply = 0x80,      // the reply's body comes back in the bulk buffer
  kStaged = 0x100,         // a piece of a copy: its reply waits for the device, the next request does not
  kStagedLast = 0x200,     // the last piece: with its reply the copy is over
  kMayPrint = 0x400,       // channel request: kernels of the process may print, the host looks for their text
  kBlockingWait = 0x800,   // its sender sleeps until it is done, and wants no processor spent on it meanwhile
};

// Into a reserved record: all but its size, which publishes it in a ring (ivshmem_ring/transport/ring.h).
inline void PutHeader(std::byte* record, const RecordHeader& header) {
  constexpr size_t kRest = offsetof(RecordHeader, op);
  std::memcpy(record + kRest, reinterpret_cast<const std::byte*>(&header) + kRest, sizeof header - kRest);
}

inline constexpr uint16_t kPadOp = 0xffff;  // fills the end of a ring, so that no record wraps
inline constexpr uint64_t kRecordAlign = 64;

// Limits. A main record carries launch parameters (32,764 bytes at most) or a captured copy; a channel record
// leaves anything large to a bulk buffer.
inline constexpr size_t kMaxMainRecordBytes = 80u << 10;
inline constexpr size_t kMaxChannelRecordBytes = 4u << 10;
inline constexpr size_t kMaxInlineCopyBytes = 64u << 10;  // in a main record
inline constexpr size_t kMaxChannelCopyBytes = 3u << 10;  // in a channel record or reply
inline constexpr size_t kBulkBytes = 1u << 20;            // one bulk buffer
inline constexpr uint32_t kBulkBuffers = 12;              // of one session

}  // namespace causeway
