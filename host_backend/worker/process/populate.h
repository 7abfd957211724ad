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
// Unmaps the pages of the program's file that are only ever read. Many of them, relocations above all, are needed at the start alone,
// and would count as this process's memory for as long as it lives. A page that is read again is mapped again from the file.
void LeaveReadPages();

}  // namespace causeway::host
