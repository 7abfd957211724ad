// SPDX-License-Identifier: Apache-2.0
// Pools of stream-ordered memory: accounting and attributes. Freed memory goes back to the device at once, so
// a pool holds exactly what its allocations use.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "tests/software_gpu/driver.h"

namespace causeway::software_gpu {

struct MemoryPool {
  CUmemoryPool handle = nullptr;
  CUdevice device = 0;
  bool is_default = false;
  bool on_host = false;
  std::atomic<uint64_t> release_threshold{0};
  std::atomic<int> reuse_event_dependencies{1};
  std::atomic<int> reuse_opportunistic{1};
  std::atomic<int> reuse_internal_dependencies{1};
  std::atomic<uint64_t> used_bytes{0};
  std::atomic<uint64_t> used_high_bytes{0};
  // What was set, for a pool on the host; devices have no access without it. Every device has access to all others.
  std::mutex mutex;
  std::map<CUdevice, CUmemAccess_flags> access;

  void AddUse(uint64_t bytes);
  void DropUse(uint64_t bytes) { used_bytes.fetch_sub(bytes); }
};
using MemoryPoolRef = std::shared_ptr<MemoryPool>;

}  // namespace causeway::software_gpu
