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
// Of the program's file the parts that are only read: what its start alone has looked at, relocations above all, counts as
// this process's memory no longer. The rest comes back with the next look.
void LeaveReadPages();

}  // namespace causeway::host
