// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/compression/compression_choice.h"

#include <algorithm>
#include <utility>

namespace causeway {
namespace {

// The peer decompresses several times as fast as this side compresses.
constexpr double kBothEnds = 1.25;
constexpr double kMostSingle = 1.2, kMostMiddle = 0.9;

}  // namespace

CompressionChoice::Plan CompressionChoice::Next(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (skipped_ != 0) {
    --skipped_;
    return Plan::kPlain;
  }
  if (unmeasured_ >= kMostUnmeasured) {
    unmeasured_ = 0;
    return Plan::kPlain;
  }
  if (!known_) return bytes > kSampleBytes ? Plan::kSample : Plan::kCompress;
  return Judge() ? Plan::kCompress : Plan::kPlain;
}

// Half of what is known is what came last, so that it follows the data within a few pieces.
void CompressionChoice::Learn(size_t bytes, size_t compressed, uint64_t us) {
  const double speed = double(bytes) * 1e6 / double(std::max<uint64_t>(us, 1));
  const double share = compressed == 0 ? 1 : double(compressed) / double(bytes);
  speed_ = known_ ? (speed_ + speed) / 2 : speed;
  share_ = known_ && compressed != 0 ? (share_ + share) / 2 : share;
}

// Whether a byte is at the peer sooner, of which the time is 1 without compression. A single piece is first compressed and then sent. Of
// many, one is compressed while another is on the link, so that only the slower of both counts. Copies are between the two: the middle has
// to be clearly less, and a single piece may lose little.
bool CompressionChoice::Pays() const {
  const double rate = double(std::max<uint64_t>(rate_.load(std::memory_order_relaxed), 1));
  const double compressing = rate / speed_;
  const double single = share_ + kBothEnds * compressing, many = std::max(share_, compressing);
  return share_ * 8 <= 7 && single < kMostSingle && (single + many) / 2 < kMostMiddle;
}

bool CompressionChoice::Judge() {
  known_ = Pays();
  if (!known_) skipped_ = kTryEach - 1;
  return known_;
}

bool CompressionChoice::NoteSample(size_t bytes, size_t compressed, uint64_t us) {
  const std::lock_guard lock(mutex_);
  Learn(bytes, compressed, us);
  return Judge();
}

bool CompressionChoice::NotePiece(size_t bytes, size_t compressed, uint64_t us) {
  const std::lock_guard lock(mutex_);
  Learn(bytes, compressed, us);
  unmeasured_ = compressed != 0 && compressed < ArrivalMeter::kLeastCompressed ? unmeasured_ + 1 : 0;
  return Judge();
}

}  // namespace causeway
