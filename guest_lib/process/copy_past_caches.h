// SPDX-License-Identifier: Apache-2.0
// Copies whose destination nobody will read through this processor's caches soon.
#pragma once
#include <cstddef>
#include <cstdint>

namespace causeway::guest {

// memcpy with stores that go past the caches, and are visible to all when it returns.
void CopyPastCaches(std::byte* to, const std::byte* from, uint64_t bytes);

}  // namespace causeway::guest
