// SPDX-License-Identifier: Apache-2.0
// Copies to memory that will not be read through this processor's caches soon: staging buffers on the way to
// the device, and large results.
#pragma once
#include <cstddef>
#include <cstdint>

namespace causeway::guest {

// A memcpy whose stores go past the caches. When it returns, all processors and devices see them.
void CopyPastCaches(std::byte* to, const std::byte* from, uint64_t bytes);

}  // namespace causeway::guest
