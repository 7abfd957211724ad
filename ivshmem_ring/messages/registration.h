// SPDX-License-Identifier: Apache-2.0
// Which pages a registration of ordinary memory (cuMemHostRegister) has to itself. Registered ranges never
// share a byte, but two of them may meet on a page, which then stays until the last of them is unregistered.
// Guest and host both compute this here, so no message has to state it.
#pragma once
#include <cstdint>
#include <iterator>

namespace causeway {

inline constexpr uint64_t kPageBytes = 4096;
inline constexpr uint64_t kHugePageBytes = 2u << 20;

struct PageRange {
  uint64_t begin, end;
  uint64_t bytes() const { return end - begin; }
};

constexpr uint64_t PageFloor(uint64_t address) {
  return address & ~(kPageBytes - 1);
}
constexpr uint64_t PageCeiling(uint64_t address) {
  return PageFloor(address + kPageBytes - 1);
}

// The pages of [address, address + bytes) of which none of `others` has a byte. `others` maps the first byte
// of each registered range to something with a field `bytes`; the range itself may be among them. The result
// is empty (begin equals end) if every page is shared.
template <class Map>
PageRange OwnPages(const Map& others, uint64_t address, uint64_t bytes) {
  PageRange own{PageFloor(address), PageCeiling(address + bytes)};
  const auto next = others.upper_bound(address);
  if (next != others.end() && PageFloor(next->first) < own.end) own.end = PageFloor(next->first);
  auto before = others.lower_bound(address);
  if (before != others.begin()) {
    --before;
    const uint64_t end = PageCeiling(before->first + before->second.bytes);
    if (end > own.begin) own.begin = end;
  }
  if (own.end < own.begin) own.end = own.begin;
  return own;
}

// Whether [address, address + bytes) shares a byte with one of `others`, which is a map as above.
template <class Map>
bool OverlapsAny(const Map& others, uint64_t address, uint64_t bytes) {
  const auto next = others.lower_bound(address);
  if (next != others.end() && next->first < address + bytes) return true;
  return next != others.begin() && std::prev(next)->first + std::prev(next)->second.bytes > address;
}

}  // namespace causeway
