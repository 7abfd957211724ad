// SPDX-License-Identifier: Apache-2.0
// Page tables, by several threads. What is mapped already the driver pins many times faster than what it must
// fault in page by page.
#pragma once
#include <cstddef>
#include <cstdint>

namespace causeway::host {

// Maps all pages of shared memory. What cannot be done here, the driver's faults do.
void Populate(std::byte* pages, uint64_t bytes);
// Unmaps them, so that munmap has nothing left to do.
void Depopulate(std::byte* pages, uint64_t bytes);

}  // namespace causeway::host
