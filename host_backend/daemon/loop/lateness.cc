// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/loop/lateness.h"

#include <algorithm>
#include <bit>

namespace causeway::daemon {

uint32_t Lateness::Bucket(Duration late) {
  const uint64_t ns = uint64_t(std::max<int64_t>(late.count(), 4));
  const auto power = uint32_t(std::bit_width(ns)) - 1;  // at least 2
  const auto quarter = uint32_t(ns >> (power - 2)) & 3;
  return std::min(4 * (power - 2) + quarter, kBuckets - 1);
}

Lateness::Duration Lateness::UpperEnd(uint32_t bucket) {
  return Duration((uint64_t{5} + bucket % 4) << (bucket / 4));
}

void Lateness::Note(Duration late, Time now) {
  if (now - now_.begin >= kWindow) {
    before_ = now - now_.begin < 2 * kWindow ? now_ : Window{};
    now_ = Window{};
    now_.begin = now;
  }
  ++now_.counts[Bucket(late)];
  now_.max = std::max(now_.max, late);
}

Lateness::Summary Lateness::Of(Time now) const {
  Summary summary;
  std::array<uint64_t, kBuckets> counts{};
  for (const Window* window : {&now_, &before_}) {
    if (now - window->begin >= 2 * kWindow) continue;
    summary.max = std::max(summary.max, window->max);
    for (uint32_t i = 0; i < kBuckets; ++i) counts[i] += window->counts[i];
  }
  for (const uint64_t count : counts) summary.count += count;
  const uint64_t wanted = summary.count - summary.count / 100;
  uint64_t seen = 0;
  for (uint32_t i = 0; i < kBuckets && summary.count != 0; ++i) {
    seen += counts[i];
    if (seen < wanted) continue;
    summary.p99 = std::min(UpperEnd(i), summary.max);
    break;
  }
  return summary;
}

}  // namespace causeway::daemon
