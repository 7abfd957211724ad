// SPDX-License-Identifier: Apache-2.0
// Which mappings of a region's slices may get pages of 2 MiB, where its file has such
// (host_backend/daemon/region/region.cc). Guest and worker ask alike, since whoever touches a page first
// decides.
#pragma once
#include <cstdint>

namespace causeway {

// Below, they would not pay: they are few, and to clear one takes a moment.
constexpr bool WantsHugePages(uint64_t bytes) {
  return bytes > uint64_t{32} << 20;
}

}  // namespace causeway
