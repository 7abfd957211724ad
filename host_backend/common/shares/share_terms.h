// SPDX-License-Identifier: Apache-2.0
// What one VM (or local user, or remote peer) is to have of the time of the GPUs that it uses (docs/sharing.md).
#pragma once
#include <cstdint>

namespace causeway {

inline constexpr uint32_t kUsualWeight = 100;
inline constexpr uint32_t kMostWeight = 10'000;
inline constexpr uint32_t kMostPcieMibPerS = 1'000'000;

// When its work starts, not how much it gets.
enum class ShareClass : uint32_t {
  kNormal = 0,
  kLatency,     // before the others, while it has had less than its share
  kBackground,  // after the others, but for a floor
};

struct ShareTerms {
  uint32_t weight = kUsualWeight;  // 1 to kMostWeight: its part of the time while others want it too
  uint32_t cap_percent = 100;      // 1 to 100: never more, also on an idle GPU
  uint32_t reserve_percent = 0;    // at least that whenever it wants it; not above its cap
  ShareClass share_class = ShareClass::kNormal;
  bool paused = false;          // none of its work starts
  uint32_t pcie_mib_per_s = 0;  // of its copies to each GPU, and as much from it; 0: as many as go

  friend bool operator==(const ShareTerms&, const ShareTerms&) = default;
};

}  // namespace causeway
