// SPDX-License-Identifier: Apache-2.0
// Copies between ordinary memory of the program and the device, in pieces through the session's bulk buffers:
// while the device has some pieces, this thread and helpers (guest_lib/process/copy_threads.h) copy others.
//
// Pieces of linear memory are posted, and the GPU tells by words when it is done with them
// (guest_lib/staging/posted_copy.h): the host starts them and waits for none. Where it cannot tell, and for
// boxes, each piece is a request whose reply comes when the device is done.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstddef>
#include <cstdint>
#include <functional>

#include "guest_lib/session/session.h"
#include "guest_lib/staging/copy_form.h"

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

inline constexpr uint64_t kSmallPiece = 256u << 10;  // what is no more is not cut

// How rows are cut into pieces, in order.
class Cut {
 public:
  // Pieces of `least` to `most` bytes. Those of linear memory begin and end small, so that threads and device
  // soon work side by side, and end together: none is more than one of so many shares of what is left.
  Cut(const HostRows& rows, uint64_t least, uint64_t most, uint32_t shares);
  bool done() const { return begun_ == all_; }
  Piece Next();

 private:
  HostRows rows_;
  bool linear_;
  uint64_t least_, most_;
  uint32_t shares_;
  uint64_t width_, height_, depth_;  // of a piece of a box, but for the last ones
  uint64_t across_, down_;           // such pieces
  uint64_t begun_ = 0, all_;         // bytes of linear memory, pieces of a box
};

// `put` writes the body of the message for one piece. What the message asks of the host is done when its
// reply comes. Does not wait for the stream where the source is captured: `form` kAsynchronous, to the
// device, small enough (CapturesSource).
CUresult CopyStaged(const HostRows& rows, bool to_device, CopyForm form, Op op,
                    const std::function<void(Writer&, const Piece&)>& put);

struct LinearCopy {
  CUdeviceptr device;  // known to be good
  std::byte* host;
  uint64_t bytes;
  CUstream stream;
  CopyForm form;
  bool to_device;
  // The copy is over when its source is taken: nothing was left to wait for.
  bool leaves;
  bool idle = false;   // nothing is known that its stream would have to do first
  uint64_t posts = 0;  // records posted up to the end of a copy that was waited for
};
// By words. False: nothing was sent, it cannot be done so (now, or there; managed memory: waited_copy.h).
bool CopyByWords(LinearCopy* copy, CUresult* result);

// The asynchronous copy of pageable memory returns before the stream has come to it: up to 1 MiB, as
// natively.
inline bool CapturesSource(bool to_device, CopyForm form, uint64_t bytes) {
  return to_device && form == CopyForm::kAsynchronous && bytes <= kBulkBytes;
}

}  // namespace causeway::guest
