// SPDX-License-Identifier: Apache-2.0
// How fast a peer's bulk bytes arrive, which that peer is told where the link is slow, so that it can compress them
// (compression_choice.h). The receiver measures it: buffers of either kernel, or of a proxy between them, take a sender's bytes at
// once and say nothing of the link. No clock of its own; of the thread that reads.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace causeway {

// A link is fast that brings so many bytes in a second. Nothing is compressed for such a link, and its peer is told nothing.
inline constexpr uint64_t kFastLink = 300'000'000;

class ArrivalMeter {
 public:
  // Fewer bytes say nothing: they may all have come before the thread began to wait. After compressed ones it has more to do before it
  // waits for the next.
  static constexpr size_t kLeastBytes = 128u << 10, kLeastCompressed = 256u << 10;

  // A thread spent so long in the socket until so many bytes, of which the first had just come, were all there. The result is what the peer is to
  // be told now, in bytes a second, at least 1 and at most kFastLink; 0: nothing that it does not know.
  uint64_t Note(uint64_t bytes, uint64_t us);

 private:
  // The middle one of the last few counts. A thread that is not let run while bytes come finds them all there, and one that is not let
  // run while it takes them finds a link that is too slow.
  static constexpr size_t kKept = 5, kEnough = 3;

  std::array<uint64_t, kKept> rates_{};
  size_t count_ = 0;
  uint64_t told_ = kFastLink;
};

}  // namespace causeway
