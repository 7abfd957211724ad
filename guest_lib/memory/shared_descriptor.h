// SPDX-License-Identifier: Apache-2.0
// The file descriptor that a program gets for a shareable handle (docs/security.md). It must do what the
// driver's own does: it can be passed to other processes (SCM_RIGHTS, fork) and imported any number of times,
// and it keeps the memory alive until its last copy is closed anywhere. So it is one end of a socket pair.
// The token waits in it as a packet at which importers only peek, and the other end, which this library
// keeps, shows when no copy is left. Any thread may call these functions.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include "ivshmem_ring/messages/sharing_messages.h"
#include "ivshmem_ring/protocol/call.h"

namespace causeway::guest {

struct Object;

// Reads the token. False: the descriptor is not one of these.
bool ReadSharedDescriptor(int descriptor, SharedToken* token);
// Reads the token from a program's OS handle: a descriptor in the pointer, or a pointer to 64 bytes.
bool ReadShareable(void* shareable, CUmemAllocationHandleType type, SharedToken* token);
// Tells the host, by messages, which descriptors have all their copies closed. To be called where memory is
// made, released or exported.
void DropClosedDescriptors();

// Exports an allocation or a pool by a call of that row: as a descriptor of the program's, or as 64 bytes.
CUresult ExportShareable(Op op, const Object& object, CUmemAllocationHandleType type, uint64_t flags,
                         void* shareable);
// Write and read the 64-byte form of a token (SharedBlob). ReadBlob returns false if the bytes hold no token.
void FillBlob(void* blob, const SharedToken& token);
bool ReadBlob(const void* blob, SharedToken* token);

}  // namespace causeway::guest
