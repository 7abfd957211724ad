// SPDX-License-Identifier: Apache-2.0
// Which mappings of a region's slices should get pages of 2 MiB, where the region's file can have such pages
// (host_backend/daemon/region/region.cc). Guest and worker both ask this function, because the side that
// touches a page first decides which size it gets.
#pragma once
#include <cstdint>

namespace causeway {

// Small mappings get ordinary pages: there are few of them, and clearing a page of 2 MiB takes a moment.
constexpr bool WantsHugePages(uint64_t bytes) {
  return bytes > uint64_t{32} << 20;
}

}  // namespace causeway
