// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/compression/arrival_meter.h"

#include <algorithm>
#include <utility>

namespace causeway {

uint64_t ArrivalMeter::Note(uint64_t bytes, uint64_t us) {
  rates_[count_++ % kKept] =
      std::clamp<uint64_t>(bytes * 1'000'000 / std::max<uint64_t>(us, 1), 1, kFastLink);
  if (count_ < kEnough) return 0;
  std::array<uint64_t, kKept> sorted = rates_;
  const size_t known = std::min(count_, kKept);
  std::sort(sorted.begin(), sorted.begin() + known);
  const uint64_t rate = sorted[known / 2], change = rate > told_ ? rate - told_ : told_ - rate;
  // A quarter more or less would change nothing, but for the last step to a fast link.
  const bool crosses = (rate == kFastLink) != (told_ == kFastLink);
  if (!crosses && change <= told_ / 4) return 0;
  return told_ = rate;
}

}  // namespace causeway
