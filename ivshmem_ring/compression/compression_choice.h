// SPDX-License-Identifier: Apache-2.0
// Whether a piece of bulk bytes is compressed before it is sent: by how fast the peer says that bytes arrive, how fast LZ4 compresses here,
// and by how much the last pieces shrank. It has no clock and compresses nothing, so that tests can give it any figures.
//
//   plain     the link is fast, or compressing does not pay
//   sample    the link is slow, and nothing is known of the data: a part of the piece is compressed, to learn what that would bring
//   compress  it has paid lately
//
// After a piece that was not worth it the next ones are sent as they are, and each 16th is looked at again. Any thread.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "ivshmem_ring/compression/arrival_meter.h"

namespace causeway {

class CompressionChoice {
 public:
  // Less is sent as it is: it is not what makes a link slow.
  static constexpr size_t kLeastBytes = 16u << 10;
  // Of a piece that is larger so much is tried first.
  static constexpr size_t kSampleBytes = 64u << 10;
  static constexpr uint32_t kTryEach = 16;
  // After so many pieces that became too small to tell how fast the link is, one is sent as it is.
  static constexpr uint32_t kMostUnmeasured = 32;

  // `rate`: what is taken for the link's until the peer says something else.
  explicit CompressionChoice(uint64_t rate = kFastLink) : rate_(rate) {}

  // So many bytes a second arrive at the peer, as it says. Any number: it is the peer's.
  void NoteRate(uint64_t rate) { rate_.store(rate, std::memory_order_relaxed); }
  // All that a piece costs while the link is fast.
  bool MayCompress(size_t bytes) const {
    return bytes >= kLeastBytes && rate_.load(std::memory_order_relaxed) < kFastLink;
  }

  enum class Plan { kPlain, kSample, kCompress };
  // For the next piece, of which MayCompress said yes.
  Plan Next(size_t bytes);
  // So many bytes were compressed within so long, and became so many; 0: they did not become fewer than MostCompressed. The result is
  // whether compressing pays. A sample's tells what to do with the piece, and a piece's what to do with the next.
  bool NoteSample(size_t bytes, size_t compressed, uint64_t us);
  bool NotePiece(size_t bytes, size_t compressed, uint64_t us);
  // What is larger afterwards does not pay.
  static constexpr size_t MostCompressed(size_t bytes) { return bytes - bytes / 8; }

 private:
  // With mutex_ held.
  void Learn(size_t bytes, size_t compressed, uint64_t us);
  bool Pays() const;
  bool Judge();

  std::atomic<uint64_t> rate_;
  std::mutex mutex_;  // of the rest; held for a few instructions
  bool known_ = false;
  double speed_ = 0;  // of compressing, in bytes a second
  double share_ = 1;  // compressed bytes of each byte
  uint32_t skipped_ = 0;
  uint32_t unmeasured_ = 0;
};

}  // namespace causeway
