// SPDX-License-Identifier: Apache-2.0
// Pages before the driver pins them: what is mapped already it pins many times faster than what it must fault
// in page by page.
#pragma once
#include <cstddef>
#include <cstdint>

namespace causeway::host {

// Maps all pages of shared memory, by several threads. What cannot be done here, the driver's faults do.
void Populate(std::byte* pages, uint64_t bytes);

}  // namespace causeway::host
