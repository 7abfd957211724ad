// SPDX-License-Identifier: Apache-2.0
// Copies that are posted, and whose end a word tells: once a copy is done, the GPU writes its record's
// sequence plus one into the word, as LentBody says (ivshmem_ring/session_messages.h).
#pragma once
#include "ivshmem_ring/session_messages.h"

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

}  // namespace causeway
