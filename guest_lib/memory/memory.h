// SPDX-License-Identifier: Apache-2.0
// What this process knows of its device memory and of its host memory that CUDA knows.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>
#include <vector>

#include "guest_lib/addresses/device_allocation.h"
#include "guest_lib/addresses/host_allocation.h"
#include "guest_lib/session/handles.h"

namespace causeway::guest {

void RememberAllocation(CUdeviceptr address, uint64_t bytes, bool from_pool, Object* pool = nullptr,
                        uint64_t source = 0);
// Other processes may use it from now on.
void NoteShared(CUdeviceptr address);
void RememberMapping(CUdeviceptr address, uint64_t bytes);
// Takes out all that begin in the range, before they are freed: afterwards an address may be another
// thread's.
std::vector<DeviceAllocation> TakeAllocations(CUdeviceptr address, uint64_t bytes);
// The call failed: they are still there.
void ReturnAllocations(const std::vector<DeviceAllocation>& taken);
// The allocation that holds the address; false if this process made none there.
bool FindAllocation(CUdeviceptr address, DeviceAllocation* allocation);

// The allocation that holds the address; false if there is none.
bool FindHost(uint64_t address, HostAllocation* allocation);
// Whether synchronous operations on the address must be waited for (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS).
bool SyncsMemops(uint64_t address);

// What the driver says at once of device memory that a copy or fill names: an address that is none, or a
// range that leaves its allocation. *known: this process made the allocation, so the host has nothing to add
// and nobody needs to wait for its opinion.
CUresult CheckDeviceRange(CUdeviceptr address, uint64_t bytes, bool* known);

// kManaged: migrating managed memory and variables, which host and device name by one address. The device's
// name for it is the one that messages carry.
enum class PointerKind { kPageable, kPinned, kDevice, kManaged };
constexpr bool IsDeviceSide(PointerKind kind) {
  return kind == PointerKind::kDevice || kind == PointerKind::kManaged;
}
// By address alone (guest_lib/addresses/address_windows.h) and by what is registered. Only after cuInit.
PointerKind KindOfPointer(uint64_t address);
// Whether a copy between the program's ordinary or pinned memory and that of the device has no managed memory
// on the device's side, as far as it migrates.
bool IsApart(CUdeviceptr device);
// Managed memory that a copy names as the host's is named as the device's.
void NameManagedAsDevice(CUDA_MEMCPY3D* box);

// All memory that a context owned ends with it: what is registered while the context is still active, the
// rest when the host has ended it and nothing on the device can use it any more.
void EndRegistrationsOf(Object* context);
void FreeMemoryOf(const Object* context);

}  // namespace causeway::guest
