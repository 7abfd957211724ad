// SPDX-License-Identifier: Apache-2.0
// How contexts begin and end, for the parts of the library that are not the calls about contexts themselves.
// Any thread may call these functions. They take the context lock and may send messages, so no other lock of
// this library's is held around them.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include "guest_lib/session/handles.h"

namespace causeway::guest {

// HoldPrimary activates a device's primary context and keeps it active for a green context, until
// DropPrimary. The errors are the driver's.
CUresult HoldPrimary(CUdevice device);
CUresult DropPrimary(CUdevice device);
// Makes `object` the context of the green context `green`; EndGreenContext ends it and all in it.
void AdoptGreenContext(Object* object, Object* green, CUdevice device);
void EndGreenContext(Object* object);

}  // namespace causeway::guest
