// SPDX-License-Identifier: Apache-2.0
// __managed__ variables: the host's driver places their memory when a module is loaded (pager.h).
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include "guest_lib/session/handles.h"

namespace causeway::guest {

// To be called for each variable of a module or library whose address the program asks for: if it is managed,
// it becomes accessible. The result is CUDA_SUCCESS, or why it cannot.
CUresult AdmitManaged(CUdeviceptr address, size_t bytes, WireHandle owner);

}  // namespace causeway::guest
