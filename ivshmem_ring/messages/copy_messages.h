// SPDX-License-Identifier: Apache-2.0
// Copies that are posted, and whose end a word tells: once a copy is done, the GPU writes its record's
// sequence plus one into the word, as LentBody says (ivshmem_ring/messages/session_messages.h).
#pragma once
#include "ivshmem_ring/messages/session_messages.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway {

// CopyBody::in_message to the device: a uint64_t follows, the word's offset in the region, and then the
// bytes.
inline constexpr uint32_t kBytesMarked = 3;

// Op::cuMemcpyHtoDAsync_v2 and the other way. `mark`: the word's offset in the region; 0: nobody looks for
// one.
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
