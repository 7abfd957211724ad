// SPDX-License-Identifier: Apache-2.0
// Pools whose memory lies on the host (CU_MEM_LOCATION_TYPE_HOST and its kin). The host's driver has a pool
// of the device in the place of each, for the handle and the attributes that can be set; what is allocated is
// region memory, which the program and the device see at one address. Allocations are there at once; a freed
// one stays until the stream has come to where it was freed.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>
#include <optional>

#include "guest_lib/session/handles.h"

namespace causeway::guest {

bool IsOnHost(const CUmemLocation& location);
CUresult CreateHostPool(CUmemoryPool* pool, CUmemPoolProps properties);
// Of a pool on the host only. One that is some location's default stays.
CUresult DestroyHostPool(CUmemoryPool pool);
bool IsHostPool(CUmemoryPool pool);

// The default pool of a location on the host, made when it is first asked for.
CUresult DefaultHostPool(CUmemoryPool* pool, const CUmemLocation& location);
// The pool that was set last for the location, or its default.
CUresult CurrentHostPool(CUmemoryPool* pool, const CUmemLocation& location);
CUresult SetCurrentHostPool(const CUmemLocation& location, CUmemoryPool pool);

CUresult AllocateFromHostPool(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream);
// What the free answers. None: the address is no such allocation, and nothing is done.
std::optional<CUresult> FreeToHostPool(CUdeviceptr address, CUstream stream);
// The same for cuMemFree, which waits for the device.
std::optional<CUresult> FreeToHostPoolNow(CUdeviceptr address);
// What was freed and no stream needs any more goes back to the region. False: there was none.
bool ReclaimFreedToHostPools();
// The pool of a live allocation; null if it is none.
CUmemoryPool HostPoolOf(CUdeviceptr address);

}  // namespace causeway::guest
