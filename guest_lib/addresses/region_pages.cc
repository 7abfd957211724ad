// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/addresses/region_pages.h"

#include <iterator>

#include "ivshmem_ring/transport/layout.h"

namespace causeway::guest {

bool RegionPages::Allocate(Connection& connection, uint64_t address, uint64_t bytes, uint64_t* offset,
                           bool* zeroed) {
  const std::lock_guard lock(mutex_);
  // Where there is no room for that, any place does.
  return (bytes >= kAlignedRunBytes &&
          TakeSlices(connection, address % kGranuleBytes, bytes, offset, zeroed)) ||
         TakeFree(bytes, offset, zeroed) || TakeSlices(connection, 0, bytes, offset, zeroed);
}

bool RegionPages::TakeFree(uint64_t bytes, uint64_t* offset, bool* zeroed) {
  for (auto run = free_.begin(); run != free_.end(); ++run) {
    if (run->second < bytes) continue;
    *offset = run->first;
    *zeroed = false;
    const uint64_t left = run->second - bytes;
    free_.erase(run);
    if (left != 0) free_[*offset + bytes] = left;
    return true;
  }
  return false;
}

bool RegionPages::TakeSlices(Connection& connection, uint64_t skew, uint64_t bytes, uint64_t* offset,
                             bool* zeroed) {
  const uint64_t slices = (skew + bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
  uint64_t first = 0;
  if (!connection.AllocateSlices(slices, &first, zeroed)) return false;
  slices_[first] = slices;
  *offset = first + skew;
  if (skew != 0) free_[first] = skew;
  if (slices != skew + bytes) free_[*offset + bytes] = slices - skew - bytes;
  return true;
}

void RegionPages::Free(Connection& connection, uint64_t offset, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  auto home = std::prev(slices_.upper_bound(offset));
  auto at = free_.emplace(offset, bytes).first;
  const auto next = std::next(at);
  if (next != free_.end() && at->first + at->second == next->first &&
      next->first < home->first + home->second) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at != free_.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second == at->first && before->first >= home->first) {
      before->second += at->second;
      free_.erase(at);
      at = before;
    }
  }
  if (at->second != home->second) return;
  connection.FreeSlices(home->first, home->second);
  free_.erase(at);
  slices_.erase(home);
}

}  // namespace causeway::guest
