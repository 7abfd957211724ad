// SPDX-License-Identifier: Apache-2.0
// Which exported function answers to a name at a CUDA version: the table behind cuGetProcAddress.
#pragma once

#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::guest {

// The newest CUDA version that a caller may ask for. Later ones are invalid, as the 13.0 driver has it.
inline constexpr int kNewestProcAddressVersion = 13000;

struct ProcAddress {
  void* address;  // null unless status is CU_GET_PROC_ADDRESS_SUCCESS
  CUdriverProcAddressQueryResult status;
};

// True for the flags and versions that cuGetProcAddress accepts: flags 0 to 3; every version up to
// kNewestProcAddressVersion, negative ones included.
bool IsValidProcAddressQuery(int version, cuuint64_t flags);

// Looks a base name up ("cuMemAlloc", never "cuMemAlloc_v2"). The version picks the newest variant not above
// it; a negative version picks the newest of all. CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM picks
// per-thread variants of the names that have one. Needs no cuInit, takes no lock, allocates nothing.
ProcAddress FindProcAddress(const char* name, int version, cuuint64_t flags);

}  // namespace causeway::guest
