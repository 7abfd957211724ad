// SPDX-License-Identifier: Apache-2.0
// One message: a header, and a body of packed values (ivshmem_ring/protocol/wire.h). The same bytes lie in a
// ring or follow each other on a TCP connection.
//
// There are three kinds of records:
//   request   on an RPC channel, guest -> host; the guest waits for its reply
//   reply     on an RPC channel, host -> guest
//   posted    in the submission queue, guest -> host; nothing comes back
// Their headers have one size and begin alike; rings and connections look at nothing else of posted ones.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "ivshmem_ring/protocol/handle.h"

namespace causeway {

struct RecordPrefix {
  uint32_t bytes;      // of header and body; in a ring the record takes this rounded up to kRecordAlign
  uint16_t op;         // an Op, or kPadOp
  uint16_t flags;      // RecordFlags and the capture mode
  uint64_t sequence;   // number of records before this one in its ring; the reader expects exactly this
  WireHandle context;  // request, posted: the caller's current context; 0: none
};

// Of a request or a reply.
struct RecordHeader : RecordPrefix {
  uint64_t main_sequence;  // request: so many posted records must have been executed before it runs
  uint64_t bulk_offset;    // request: where its staging buffer lies in the region; over TCP the number of
                           // the buffer, which the reply repeats
  uint32_t bulk_bytes;     // request: bytes of the buffer that are lent; reply: bytes that were written
  uint32_t result;         // reply: CUresult
};

struct PostedHeader : RecordPrefix {
  WireHandle stream;  // the one stream that it works on; 0: anything, anywhere
  WireHandle event;   // an event that it records or waits for; 0: none
  uint32_t thread;    // a number of the sending thread (FlightThread())
  uint32_t reserved;
};
static_assert(sizeof(RecordPrefix) == 24 && sizeof(RecordHeader) == 48 && sizeof(PostedHeader) == 48);
static_assert(std::is_trivially_copyable_v<RecordHeader> && std::is_trivially_copyable_v<PostedHeader>);

// The header of a record, which is not shorter.
template <class Header>
Header ReadHeader(std::span<const std::byte> record) {
  Header header;
  std::memcpy(&header, record.data(), sizeof header);
  return header;
}

enum RecordFlags : uint16_t {
  kCaptureModeMask = 0x3,  // the caller's CUstreamCaptureMode
  kBulkToHost = 0x4,       // the staging buffer carries data to the host
  kBulkToGuest = 0x8,      // the host fills the staging buffer
  kOutputPending = 0x10,   // reply: kernels have printed; the guest fetches the text before its call returns
  kResultWanted = 0x20,    // posted: the caller will ask for its result by Op::kPostedResult
  kLargeRequest = 0x40,    // the body lies in the staging buffer; the record says how many bytes it has
  kLargeReply = 0x80,      // the reply's body comes back in the staging buffer
  kStaged = 0x100,         // a piece of a copy: its reply waits for the device, the next request does not
  kStagedLast = 0x200,     // the last piece of a copy: the copy is over when its reply has come
  kMayPrint = 0x400,       // request: kernels of the process may print, so the host looks for their text
  kBlockingWait = 0x800,   // the sender sleeps until this is done, and no thread shall spin for it meanwhile
};

// Writes the header into a reserved record, all but its size: the size publishes the record in a ring
// (ivshmem_ring/transport/ring.h).
template <class Header>
void PutHeader(std::byte* record, const Header& header) {
  constexpr size_t kRest = offsetof(RecordPrefix, op);
  std::memcpy(record + kRest, reinterpret_cast<const std::byte*>(&header) + kRest, sizeof header - kRest);
}

inline constexpr uint16_t kPadOp = 0xffff;  // a record that fills the end of a ring, so that none wraps
inline constexpr uint64_t kRecordAlign = 64;
// How much of a ring a record takes.
constexpr uint64_t RoomOf(uint64_t record_bytes) {
  return (record_bytes + kRecordAlign - 1) & ~(kRecordAlign - 1);
}

// Limits of sizes. A posted record carries launch parameters (32,764 bytes at most) or the bytes of a small
// copy; a record of a channel leaves anything large to a staging buffer.
inline constexpr size_t kMaxMainRecordBytes = 80u << 10;
inline constexpr size_t kMaxChannelRecordBytes = 4u << 10;
inline constexpr size_t kMaxInlineCopyBytes = 64u << 10;  // bytes of a copy in a posted record
inline constexpr size_t kMaxChannelCopyBytes = 3u << 10;  // bytes of a copy in a request or reply
inline constexpr size_t kBulkBytes = 1u << 20;            // size of one staging buffer
inline constexpr uint32_t kBulkBuffers = 12;              // staging buffers of one session

}  // namespace causeway
