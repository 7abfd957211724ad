// SPDX-License-Identifier: Apache-2.0
// __managed__ variables: memory of the host's driver that the program reads and writes by pointer. This
// process has pages of its own at the same address, and a copy of what both sides last agreed on. Before a
// message is sent, the bytes that the program changed since go first; after an answer, the bytes that the
// device changed are taken over. So both see each other's writes where CUDA has them synchronise; a kernel
// that runs does not see the program's writes, nor the program a running kernel's.
#pragma once
#include "ivshmem_ring/driver_api.h"

#include <cstdint>

#include "guest_lib/handles.h"

namespace causeway::guest {

// The answer for a variable of a module or library: if it is managed, it is accessible from now on. 0, or why
// not.
CUresult AdmitManaged(CUdeviceptr address, size_t bytes, WireHandle owner);
// With the module or library.
void ForgetManagedOf(WireHandle owner);

// Around messages (session.cc). No-ops while there are none, and within each other.
void SendManagedChanges();
void TakeManagedChanges();

}  // namespace causeway::guest
