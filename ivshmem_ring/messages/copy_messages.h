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

// Op::kQueuedCopy, posted: pieces of a copy between ordinary memory and the device, for streams of the
// worker's own. Each lies in a place of its own in the region and has the words of a QueuedPlace (layout.h).
// A piece to the device is copied once its `turn` says that it is there, one to the host once that says that
// the one before it in the same place was taken; `done` then says that it is. So the worker hands the driver
// pieces that are not there yet, and is not asked again for each.
// As a call, without pieces: what those streams say (cuStreamQuery); with kQueueMakes, whether they can be
// had and the GPU can wait.
struct QueuedCopyBody {
  uint64_t device;    // the first piece's; the others follow it
  WireHandle stream;  // the program's
  uint32_t to_device;
  uint32_t count;  // QueuedPiece that follow
  uint32_t flags;
  uint32_t reserved;
};
static_assert(sizeof(QueuedCopyBody) == 32);
struct QueuedPiece {
  uint64_t offset;  // in the region
  uint64_t turn;    // waited for before the copy; 0: nothing is
  uint64_t done;    // written after it
  uint32_t bytes;
  uint16_t place;   // its words
  uint16_t stream;  // one of kQueueStreams
};
static_assert(sizeof(QueuedPiece) == 32);
inline constexpr uint32_t kQueueBegins = 1;  // the pieces come after what the program's stream has
inline constexpr uint32_t kQueueEnds = 2;    // what the program's stream gets comes after the pieces
inline constexpr uint32_t kQueueMakes = 4;
inline constexpr uint32_t kMostQueued = 64;  // pieces of a record
inline constexpr uint32_t kQueueStreams = 2;

}  // namespace causeway
