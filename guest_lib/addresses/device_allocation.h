// SPDX-License-Identifier: Apache-2.0
// What is known of one piece of device memory that the program has.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <atomic>
#include <cstdint>

namespace causeway::guest {

struct Object;

struct DeviceAllocation {
  CUdeviceptr address;
  uint64_t bytes;
  Object* context;
  uint64_t id;  // CU_POINTER_ATTRIBUTE_BUFFER_ID
  bool from_pool;
  Object* pool;  // of cuMemAllocFromPoolAsync; null: the device's current one
  bool sync_memops;
  uint64_t source = 0;  // SourceOfPool (guest_lib/memory/freed_memory.h); 0: freed by the host alone
  bool mapped = false;  // by cuMemMap: what adjoins may be used with it, so only the host can judge a range
};

// Whether other processes may look at device memory of this one, or this one at theirs: from the first handle
// on that was given out or opened.
inline std::atomic<bool> shares_device_memory{false};
inline void NoteSharedDeviceMemory() {
  shares_device_memory.store(true);
}
inline bool SharesDeviceMemory() {
  return shares_device_memory.load();
}

}  // namespace causeway::guest
