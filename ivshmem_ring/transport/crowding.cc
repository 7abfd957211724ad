// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/transport/crowding.h"

#include <algorithm>

namespace causeway {

Crowding& Crowding::OfProcess() {
  static Crowding crowding;
  return crowding;
}

Crowding::Kind Crowding::At(uint64_t now_us) const {
  return now_us < until_us_.load(std::memory_order_relaxed) ? kind_.load(std::memory_order_relaxed)
                                                            : Kind::kNone;
}

// Threads that yield at once may overwrite what the other wrote: then a crowd is seen a few yields later, or is taken
// to end a window too early.
void Crowding::Note(uint64_t now_us, uint64_t took_us, uint64_t short_us, Kind kind) {
  if (took_us <= short_us) return;
  const bool slice = took_us >= kSliceUs;
  if (now_us > first_us_.load(std::memory_order_relaxed) + kTogetherUs) {
    first_us_.store(now_us, std::memory_order_relaxed);
    count_.store(0, std::memory_order_relaxed);
  }
  if (count_.fetch_add(1, std::memory_order_relaxed) + 1 < kLongYields && !slice) return;
  if (!slice && At(now_us) == Kind::kSlices) return;
  const uint64_t until_us = until_us_.load(std::memory_order_relaxed);
  const uint64_t last_us = window_us_.load(std::memory_order_relaxed);
  const bool again = until_us != 0 && now_us < until_us + last_us + kTogetherUs;
  const Kind seen = slice ? Kind::kSlices : kind;
  const uint64_t most_us = seen == Kind::kSlices ? kMostUs : kMostTurnsUs;
  const uint64_t window_us = again ? std::min(last_us * 2, most_us) : kFirstUs;
  kind_.store(seen, std::memory_order_relaxed);
  window_us_.store(window_us, std::memory_order_relaxed);
  until_us_.store(now_us + window_us, std::memory_order_relaxed);
}

}  // namespace causeway
