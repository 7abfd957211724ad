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
  Object* pool;  // the one given to cuMemAllocFromPoolAsync; null: the device's current pool
  bool sync_memops;
  uint64_t source = 0;  // SourceOfPool (guest_lib/memory/freed_memory.h); 0: it is not kept when it is freed
  // Mapped by cuMemMap: adjoining memory may be used together with it, so only the host can judge a range.
  bool mapped = false;
};

// Whether other processes may use device memory of this one, or this one uses theirs: true from the first
// handle on that was exported or opened.
inline std::atomic<bool> shares_device_memory{false};
inline void NoteSharedDeviceMemory() {
  shares_device_memory.store(true);
}
inline bool SharesDeviceMemory() {
  return shares_device_memory.load();
}

}  // namespace causeway::guest
