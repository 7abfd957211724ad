// SPDX-License-Identifier: Apache-2.0
// A driver for fuzzing the worker's decoder. Every function exists. It counts on nothing but what the worker
// promises to any driver: objects it hands over are alive, what it points to can be read or written.
#pragma once
#include <cstdint>

#include "ivshmem_ring/protocol/handle.h"

namespace causeway::fuzz {

// Fills TheDriver(): once per process.
void InstallFakeDriver();
// Ends all objects, with the destructors of user objects.
void EndFakeObjects();
// All objects end; errors and counts follow the seed from here on.
void ResetFakeDriver(uint64_t seed);
uint64_t FakeDriverCalls();

}  // namespace causeway::fuzz
