// SPDX-License-Identifier: Apache-2.0
// What the parts of the fake driver share: its objects and its chance. One thread.
#pragma once
#include <cstdint>

#include "ivshmem_ring/protocol/handle.h"

namespace causeway::fuzz {

uintptr_t MakeFakeObject(HandleKind kind, uintptr_t parent);
void RequireFakeObject(const char* function, HandleKind kind, const void* object);
uintptr_t CurrentFakeContext();
// Whether a call of the driver's has given that address out for device memory.
bool IsFakeDeviceMemory(CUdeviceptr address);

// True once in so many calls.
bool ByChance(uint64_t once_in);
CUresult SomeError();

void InstallFakeMemory();
void ResetFakeMemory();

}  // namespace causeway::fuzz
