// SPDX-License-Identifier: Apache-2.0
// How contexts begin and end, as far as others than the calls about them have a part in it. Any thread may
// call these.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

#include "guest_lib/session/handles.h"

namespace causeway::guest {

// A green context keeps the primary context active until it is dropped.
CUresult HoldPrimary(CUdevice device);
CUresult DropPrimary(CUdevice device);
// Makes a context object of what stands for a green context, and ends it.
void AdoptGreenContext(Object* object, Object* green, CUdevice device);
void EndGreenContext(Object* object);
// Successful calls that changed how the driver runs kernels of a context.
uint64_t ContextSettings();

}  // namespace causeway::guest
