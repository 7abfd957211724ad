// SPDX-License-Identifier: Apache-2.0
// The two words by which those who send work and those who serve pages know of each other.
#pragma once
#include <atomic>
#include <cstdint>

namespace causeway::guest::work {

// The number of the watch: not 0 while there are pages to care for, and another each time that there are some
// again. Kept by the pager, from before the first pages come until the last are gone. Nobody can hand the
// device memory of a watch before the call that made the memory has returned, so it may be looked at without
// an order of its own.
inline std::atomic<uint64_t> watch{0};
inline bool IsWatched() {
  return watch.load(std::memory_order_relaxed) != 0;
}

// Whether work that may touch them was sent and not waited for. Kept by MessageMark
// (guest_lib/managed/work.h) during a watch; when one begins, anything may be.
inline std::atomic<bool> under_way{true};

}  // namespace causeway::guest::work
