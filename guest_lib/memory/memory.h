// SPDX-License-Identifier: Apache-2.0
// What this process knows of its device memory, and of the host memory that CUDA knows. Any thread may call
// these functions; they send no messages unless a comment says so.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>
#include <vector>

#include "guest_lib/addresses/device_allocation.h"
#include "guest_lib/addresses/host_allocation.h"
#include "guest_lib/session/submissions.h"

namespace causeway::guest {

// To be called when the host has made an allocation. `source` is SourceOfPool's (freed_memory.h).
void RememberAllocation(CUdeviceptr address, uint64_t bytes, bool from_pool, Object* pool = nullptr,
                        uint64_t source = 0);
// To be called when other processes may use the memory from now on.
void NoteShared(CUdeviceptr address);
// To be called when cuMemMap has mapped memory there.
void RememberMapping(CUdeviceptr address, uint64_t bytes);
// Takes out all allocations that begin in the range, before they are freed on the host: afterwards another
// thread may get the address. ReturnAllocations puts them back if freeing failed.
std::vector<DeviceAllocation> TakeAllocations(CUdeviceptr address, uint64_t bytes);
void ReturnAllocations(const std::vector<DeviceAllocation>& taken);
// The allocation that holds the address; false if this process made none there.
bool FindAllocation(CUdeviceptr address, DeviceAllocation* allocation);

// The allocation that holds the address; false if there is none.
bool FindHost(uint64_t address, HostAllocation* allocation);
// Whether synchronous operations on the address must be waited for (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS).
bool SyncsMemops(uint64_t address);

// Checks device memory that a copy or fill names, as the driver does at the call: the address must be device
// memory, and the range must stay inside of its allocation. *known says whether this process made the
// allocation; then the host has nothing to add, and the call need not wait for its answer.
CUresult CheckDeviceRange(CUdeviceptr address, uint64_t bytes, bool* known);

// What an address points to. kManaged is migrating managed memory, variables included: host and device name
// it by one address, and messages name it as device memory.
enum class PointerKind { kPageable, kPinned, kDevice, kManaged };
constexpr bool IsDeviceSide(PointerKind kind) {
  return kind == PointerKind::kDevice || kind == PointerKind::kManaged;
}
// By the address alone (guest_lib/addresses/address_windows.h) and by what is registered. Only after cuInit.
PointerKind KindOfPointer(uint64_t address);
// Whether that device memory is no migrating managed memory, so that a copy between it and ordinary or pinned
// memory is no work on managed pages.
inline bool IsApart(CUdeviceptr device) {
  return !work::IsWatched() || KindOfPointer(device) != PointerKind::kManaged;
}
// Changes a 3D copy that names managed memory as host memory so that it names it as device memory.
void NameManagedAsDevice(CUDA_MEMCPY3D* box);
// Lets the device reach the pinned memory that a 3D copy names (device_reach.h). To be called before a copy becomes part of a graph,
// because each launch copies without this library.
void NameOnDevice(const CUDA_MEMCPY3D& box);

// One side of a 3D copy, resolved: a unified address is the host's or the device's, and a pitch or height that is
// left out is the box's own.
struct BoxSide {
  CUmemorytype type;
  uint64_t base, address;  // as given, and of the box's first byte if it is linear
  size_t pitch, rows;
  bool pageable;
  bool fits;  // linear, and the box's rows fit its pitch; or an array, which is the host's to judge
};
BoxSide SideOf(const CUDA_MEMCPY3D& box, bool source);

}  // namespace causeway::guest
