// SPDX-License-Identifier: Apache-2.0
// Pools whose memory lies on the host (CU_MEM_LOCATION_TYPE_HOST and its variants). In the place of each the
// host's driver has a pool of the device, for the handle and for the attributes that can be set. What is
// allocated from them is region memory, or over TCP memory like pinned memory, which program and device see at one address. An allocation is there
// at once; a freed one stays until its stream has come to the free. Any thread may call these functions.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/maybe_result.h"

#include <span>

#include "guest_lib/session/handles.h"

namespace causeway::guest {

bool IsOnHost(const CUmemLocation& location);
CUresult CreateHostPool(CUmemoryPool* pool, CUmemPoolProps properties);
// Only for a pool on the host. One that is the default of a location is not destroyed.
CUresult DestroyHostPool(CUmemoryPool pool);
bool IsHostPool(CUmemoryPool pool);
// The access that devices have to a pool on the host. They have none until the program sets it, as natively.
void NoteHostPoolAccess(CUmemoryPool pool, std::span<const CUmemAccessDesc> accesses);
CUmemAccess_flags HostPoolAccess(CUmemoryPool pool, CUdevice device);

// The default pool of a location on the host, made when it is first asked for.
CUresult DefaultHostPool(CUmemoryPool* pool, const CUmemLocation& location);
// The pool that was set last for the location, or its default.
CUresult CurrentHostPool(CUmemoryPool* pool, const CUmemLocation& location);
CUresult SetCurrentHostPool(const CUmemLocation& location, CUmemoryPool pool);

CUresult AllocateFromHostPool(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream);
// What the free answers. None: the address is no such allocation, and nothing is done.
MaybeResult FreeToHostPool(CUdeviceptr address, CUstream stream);
// The same for cuMemFree, which waits for the device.
MaybeResult FreeToHostPoolNow(CUdeviceptr address);
// Gives back what was freed and no stream uses any more. False: there was nothing.
bool ReclaimFreedToHostPools();
// The pool of a live allocation; null if there is no allocation at that address.
CUmemoryPool HostPoolOf(CUdeviceptr address);

}  // namespace causeway::guest
