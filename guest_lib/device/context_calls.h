// SPDX-License-Identifier: Apache-2.0
// How contexts begin and end, for the parts of the library that are not the calls about contexts themselves.
// Any thread may call these functions; they take the context lock, so no other lock of this library's is held
// around them.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

#include "guest_lib/session/handles.h"

namespace causeway::guest {

// Keep the primary context active, for a green context, and end that.
CUresult HoldPrimary(CUdevice device);
CUresult DropPrimary(CUdevice device);
// Make a context of an object that stands for a green context, and end it.
void AdoptGreenContext(Object* object, Object* green, CUdevice device);
void EndGreenContext(Object* object);

}  // namespace causeway::guest
