// SPDX-License-Identifier: Apache-2.0
// The descriptor that a program gets for a shareable handle. It must do what the driver's own does: be passed
// to other processes (SCM_RIGHTS, fork), be imported any number of times, and keep the memory alive until its
// last copy is closed anywhere. So it is one end of a socket pair: the token waits in it as a packet that
// importers only peek at, and the other end, which this library keeps, tells when no copy is left.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include "ivshmem_ring/messages/sharing_messages.h"
#include "ivshmem_ring/protocol/call.h"

namespace causeway::guest {

CUresult MakeSharedDescriptor(const SharedToken& token, bool is_pool, int* descriptor);
// False for a descriptor of anything else.
bool ReadSharedDescriptor(int descriptor, SharedToken* token);
// The token in what a program passes as an OS handle: a descriptor in the pointer, or a pointer to 64 bytes.
bool ReadShareable(void* shareable, CUmemAllocationHandleType type, SharedToken* token);
// Tells the host of descriptors that nobody holds any more. Called where memory is made, released or
// exported.
void DropClosedDescriptors();

// Memory of another process, where the driver has mapped it in the worker.
CUresult OpenShared(Op op, const OpenSharedBody& body, OpenedMemory* opened);

// The 64-byte forms.
void FillBlob(void* blob, const SharedToken& token);
bool ReadBlob(const void* blob, SharedToken* token);

}  // namespace causeway::guest
