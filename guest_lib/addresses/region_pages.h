// SPDX-License-Identifier: Apache-2.0
// Single pages of the region, for registrations: from slices of their own, which are returned when empty.
#pragma once
#include <cstdint>
#include <map>

#include "guest_lib/connection/connection.h"
#include "guest_lib/process/lock_order.h"

namespace causeway::guest {

// Where there is room, runs of so many bytes have the same offset modulo kGranuleBytes in the region as in the
// process, so that the kernel can map and move 2 MiB of them by one entry of a page table.
inline constexpr uint64_t kAlignedRunBytes = 8 * kGranuleBytes;

class RegionPages {
 public:
  // A run of pages to stand in for those at `address`; false when the region is full. `bytes` is a multiple
  // of the page. *zeroed: nothing was ever written to them.
  bool Allocate(Connection& connection, uint64_t address, uint64_t bytes, uint64_t* offset, bool* zeroed);
  // Any part of what was allocated.
  void Free(Connection& connection, uint64_t offset, uint64_t bytes);

 private:
  // These need the lock.
  bool TakeFree(uint64_t bytes, uint64_t* offset, bool* zeroed);
  bool TakeSlices(Connection& connection, uint64_t skew, uint64_t bytes, uint64_t* offset, bool* zeroed);

  Mutex<Lock::kRegionPages> mutex_;
  std::map<uint64_t, uint64_t> slices_;  // offset in the region -> bytes
  std::map<uint64_t, uint64_t> free_;    // the same, never across two runs of slices
};

}  // namespace causeway::guest
