// SPDX-License-Identifier: Apache-2.0
// Copies between ordinary memory of the program and the device, in pieces through the session's bulk buffers:
// while the device has one piece, this thread and helpers (guest_lib/copy_threads.h) copy others.
#pragma once
#include "ivshmem_ring/driver_api.h"

#include <cstddef>
#include <cstdint>
#include <functional>

#include "guest_lib/copy.h"
#include "guest_lib/session.h"

namespace causeway::guest {

// The program's side: `depth` slices of `height` rows of `width` bytes.
struct HostRows {
  std::byte* first;
  uint64_t width, height, depth;
  uint64_t pitch, slice_pitch;
};

// A part of it, packed in a buffer: whole slices, or rows of one, or bytes of one row.
struct Piece {
  uint64_t column, row, slice;
  uint64_t width, height, depth;
  uint64_t bytes() const { return width * height * depth; }
};

// How rows are cut into pieces of at most `most_bytes`.
class Cut {
 public:
  Cut(const HostRows& rows, uint64_t most_bytes);
  uint64_t count() const { return across_ * down_ * deep_; }
  Piece At(uint64_t index) const;

 private:
  HostRows rows_;
  uint64_t width_, height_, depth_;    // of a piece, but for the last ones
  uint64_t across_, down_, deep_ = 0;  // pieces
};

// `put` writes the body of the message for one piece. What the message asks of the host is done when its
// reply comes. Does not wait for the stream where the source is captured: `form` kAsynchronous, to the
// device, small enough (CapturesSource).
CUresult CopyStaged(const HostRows& rows, bool to_device, CopyForm form, Op op,
                    const std::function<void(Writer&, const Piece&)>& put);

// The asynchronous copy of pageable memory returns before the stream has come to it: up to 1 MiB, as
// natively.
inline bool CapturesSource(bool to_device, CopyForm form, uint64_t bytes) {
  return to_device && form == CopyForm::kAsynchronous && bytes <= kBulkBytes;
}

}  // namespace causeway::guest
