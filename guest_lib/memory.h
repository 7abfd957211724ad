// SPDX-License-Identifier: Apache-2.0
// What this process knows of its device and pinned memory.
#pragma once
#include "ivshmem_ring/driver_api.h"

#include <cstdint>
#include <vector>

#include "guest_lib/handles.h"

namespace causeway::guest {

struct DeviceAllocation {
  CUdeviceptr address;
  uint64_t bytes;
  Object* context;
  uint64_t id;  // CU_POINTER_ATTRIBUTE_BUFFER_ID
  bool from_pool;
};

void RememberAllocation(CUdeviceptr address, uint64_t bytes, bool from_pool);
// Takes out all that begin in the range, before they are freed: afterwards an address may be another
// thread's.
std::vector<DeviceAllocation> TakeAllocations(CUdeviceptr address, uint64_t bytes);
// The call failed: they are still there.
void ReturnAllocations(const std::vector<DeviceAllocation>& taken);
// The allocation that holds the address; false if this process made none there.
bool FindAllocation(CUdeviceptr address, DeviceAllocation* allocation);

enum class PointerKind { kPageable, kPinned, kDevice };
// By address alone (guest_lib/address_windows.h). Only after cuInit.
PointerKind KindOfPointer(uint64_t address);

// Pinned memory where none is shared (TCP): ordinary memory, copied like it.
CUresult AllocatePrivateHost(void** address, uint64_t bytes);
CUresult FreePrivateHost(void* address);

}  // namespace causeway::guest
