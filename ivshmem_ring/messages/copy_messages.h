// SPDX-License-Identifier: Apache-2.0
// Copies between the guest process and the device. The end of those that are posted is told by a fence: once
// a copy is done, the GPU writes its record's sequence plus one into a word of the region.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/handle.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway {

// When a copy may return, as the call that asks for it says.
enum class CopyForm : uint32_t {
  kAsynchronous = 0,   // in the stream; pageable sources are captured, pageable destinations waited for
  kSynchronous = 1,    // the plain call, ordered by the legacy stream
  kStreamThenWait = 2  // in the stream, and done when the call returns (per-thread default stream)
};

// Where the bytes of a copy are, or come to be.
enum class BytesIn : uint32_t {
  kRequestBuffer = 0,  // in the staging buffer that the request lends
  kMessage = 1,        // behind the body; to the host: in the reply
  kRegion = 2,         // a LentBody follows the body and says where
  kFencedMessage =
      3  // to the device: a uint64_t follows, the offset of the fence's word in the region, then the bytes
};

// Op::kCopyToDevice: the bytes go to `device`. Op::kCopyToHost: the other way.
struct CopyBody {
  uint64_t device;
  uint64_t bytes;
  WireHandle stream;  // not for kSynchronous
  CopyForm form;
  BytesIn bytes_in;
};
static_assert(sizeof(CopyBody) == 32);
// Bytes at `offset` in the region. Where the copy is posted they are the copy's until its end: then the GPU
// writes the record's sequence plus one into the word at `mark` there.
struct LentBody {
  uint64_t offset;
  uint64_t mark;
};

// The side of a 3D copy that lies packed in the staging buffer which the request lends.
enum class PackedSide : uint32_t { kNone = 0, kSource = 1, kDestination = 2 };

// Op::cuMemcpy3D_v2: every 2D and 3D copy. Handles inside the box travel beside it; a host side is pinned
// memory or, if packed_side says so, lies packed in the staging buffer.
struct BoxBody {
  CUDA_MEMCPY3D box;
  WireHandle source_array;
  WireHandle destination_array;
  WireHandle stream;
  CopyForm form;
  PackedSide packed_side;
  // Of cuMemcpy3DPeer and its asynchronous form; both 0 in all other copies.
  WireHandle source_context;
  WireHandle destination_context;
};
static_assert(sizeof(BoxBody) == 248);

// Op::cuMemcpyHtoDAsync_v2 and the other way. `mark`: the word's offset in the region; 0: none is written.
struct PinnedBody {
  uint64_t device;
  uint64_t host;  // an address in the window, or in registered memory
  uint64_t bytes;
  WireHandle stream;
  uint64_t mark;
};

// Op::kQueuedCopy, posted: pieces of a copy between ordinary memory and the device, in streams of the
// worker's own. Each piece lies in a staging slot of the region, which has the words of a QueuedPlace
// (layout.h). The GPU copies a piece to the device once `turn` says that its bytes are there, and a piece to
// the host once `turn` says that the piece before it in the same slot was taken; then it writes `done`. So
// the worker hands the driver pieces that are not there yet, and is not asked again for each. As a
// synchronous call, without pieces, it answers what those streams say (cuStreamQuery); with kQueueMakes it
// answers whether the streams can be had and the GPU can wait for words.
struct QueuedCopyBody {
  uint64_t device;    // the device address of the first piece; the others follow it
  WireHandle stream;  // the program's stream
  uint32_t to_device;
  uint32_t count;  // so many QueuedPiece follow
  uint32_t flags;
  uint32_t reserved;
};
static_assert(sizeof(QueuedCopyBody) == 32);
struct QueuedPiece {
  uint64_t offset;  // in the region
  uint64_t turn;    // the value of QueuedPlace::turn for which the GPU waits; 0: it does not wait
  uint64_t done;    // the value of QueuedPlace::done that it writes afterwards
  uint32_t bytes;
  uint16_t place;   // the number of its staging slot
  uint16_t stream;  // one of kQueueStreams
};
static_assert(sizeof(QueuedPiece) == 32);
inline constexpr uint32_t kQueueBegins = 1;  // the pieces come after what the program's stream has now
inline constexpr uint32_t kQueueEnds = 2;    // what the program's stream gets later comes after the pieces
inline constexpr uint32_t kQueueMakes = 4;
inline constexpr uint32_t kMostQueued = 64;  // pieces of one record
inline constexpr uint32_t kQueueStreams = 2;

}  // namespace causeway
