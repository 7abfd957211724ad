// SPDX-License-Identifier: Apache-2.0
// The VM's shared memory as a worker has it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace causeway::host {

struct RegionView {
  std::byte* base = nullptr;  // control part (granule 0 and slots), mapped by the worker
  int fd = -1;
  uint64_t bytes = 0;           // 0: there is none
  uint64_t window_address = 0;  // where slices are mapped
  uint32_t slot = 0;
  bool granted = false;  // a device's pages, under Xen: no thread can sleep on a word of them (futex)

  // Whether the range lies among slices that by the owner table, whose entries it reads once, are the slot's.
  bool OwnsSlices(uint64_t offset, uint64_t size) const;
};

}  // namespace causeway::host
