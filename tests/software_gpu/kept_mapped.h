// SPDX-License-Identifier: Apache-2.0
// Work that a stream runs was checked when it was asked for. Until it runs, its memory may be freed,
// unmapped, unregistered or made read-only: so it asks again, and nothing is unmapped while it touches what
// it asked for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <shared_mutex>

namespace causeway::software_gpu {

// Held shared by work that touches memory, from its last look on; held alone to unmap, and to take a right
// away. The address space's own lock (memory_map.cc) and those of textures are taken within it, no other.
std::shared_mutex& KeptMapped();

struct Touched {
  uint64_t address = 0;
  size_t bytes = 0;
  bool written = false;
  bool pageable = false;  // the program's own memory, which is not the device's to know
};

// Whether all of it may be touched now; the caller holds KeptMapped(). The second form records the fault that
// NVIDIA's driver has where it may not.
bool MayTouch(const Touched& range);
bool MayTouchOrFault(std::initializer_list<Touched> ranges);

// Does `work`, which touches `ranges`, if it may; otherwise the device has a fault. False: it has.
template <typename Work>
bool Touch(std::initializer_list<Touched> ranges, const Work& work) {
  const std::shared_lock kept(KeptMapped());
  if (!MayTouchOrFault(ranges)) return false;
  work();
  return true;
}

}  // namespace causeway::software_gpu
