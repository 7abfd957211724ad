// SPDX-License-Identifier: Apache-2.0
// How a copy of ordinary memory is cut into pieces, each of which fits a staging buffer. Sizes are in bytes.
#pragma once
#include <cstddef>
#include <cstdint>

namespace causeway::guest {

// The program's side: `depth` slices of `height` rows of `width` bytes.
struct HostRows {
  std::byte* first;
  uint64_t width, height, depth;
  uint64_t pitch, slice_pitch;  // from one row, and from one slice, to the next
};

// A part of it, which lies in a buffer without gaps: whole slices, or rows of one slice, or bytes of one row.
struct Piece {
  uint64_t column, row, slice;
  uint64_t width, height, depth;
  uint64_t bytes() const { return width * height * depth; }
};

inline uint64_t DivideUp(uint64_t value, uint64_t by) {
  return (value + by - 1) / by;
}

// How rows are cut into pieces, in order.
class Cut {
 public:
  // Pieces have `least` to `most` bytes. Those of linear memory begin small, so that threads and device soon
  // work side by side, and end small, so that they end together: none has over 1/`shares` of what is left.
  Cut(const HostRows& rows, uint64_t least, uint64_t most, uint32_t shares);
  bool done() const { return begun_ == all_; }
  Piece Next();

 private:
  HostRows rows_;
  bool linear_;
  uint64_t least_, most_;
  uint32_t shares_;
  uint64_t width_, height_, depth_;  // of a 3D copy's piece, but for the last ones
  uint64_t across_, down_;           // how many such pieces lie side by side, and below each other
  uint64_t begun_ = 0, all_;         // bytes of linear memory, or pieces of a 3D copy
};

}  // namespace causeway::guest
