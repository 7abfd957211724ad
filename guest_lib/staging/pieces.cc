// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/staging/pieces.h"

#include <algorithm>

#include "guest_lib/staging/copy_plan.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::guest {
namespace {}  // namespace

Cut::Cut(const HostRows& rows, uint64_t least, uint64_t most, uint32_t shares)
    : rows_(rows), linear_(rows.height == 1 && rows.depth == 1), least_(least), most_(most), shares_(shares) {
  const uint64_t slice = rows.width * rows.height;
  if (slice * rows.depth <= kLeastLargeBox) most = std::min(most, least);
  width_ = std::min(rows.width, most);
  height_ = std::clamp<uint64_t>(most / rows.width, 1, rows.height);
  depth_ = slice <= most ? std::clamp<uint64_t>(most / slice, 1, rows.depth) : 1;
  across_ = DivideUp(rows.width, width_);
  down_ = DivideUp(rows.height, height_);
  all_ = linear_ ? rows.width : across_ * down_ * DivideUp(rows.depth, depth_);
}

Piece Cut::Next() {
  Piece piece{};
  if (linear_) {
    const uint64_t left = all_ - begun_;
    const uint64_t bytes = std::min(std::clamp(begun_, least_, most_),
                                    std::max(least_, left / shares_ / kPageBytes * kPageBytes));
    piece = {begun_, 0, 0, std::min(bytes, left), 1, 1};
    begun_ += piece.width;
    return piece;
  }
  const uint64_t index = begun_++;
  piece.column = index % across_ * width_;
  piece.row = index / across_ % down_ * height_;
  piece.slice = index / across_ / down_ * depth_;
  piece.width = std::min(width_, rows_.width - piece.column);
  piece.height = std::min(height_, rows_.height - piece.row);
  piece.depth = std::min(depth_, rows_.depth - piece.slice);
  return piece;
}

}  // namespace causeway::guest
