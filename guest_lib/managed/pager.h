// SPDX-License-Identifier: Apache-2.0
// Managed memory in its migrating form, and __managed__ variables: the driver's own managed memory on the
// host, which it moves between processors as it sees fit, and pages of this process at the same addresses,
// filled when they are touched. One thread serves the faults and everything else that concerns the pages
// (guest_lib/managed/areas.h), so whoever faults may hold any lock of this library's.
//
// What this cannot hide is in docs/managed_memory.md.
#pragma once
#include "guest_lib/addresses/host_allocation.h"
#include "ivshmem_ring/protocol/handle.h"

namespace causeway::guest {

// Managed memory that the driver has placed becomes accessible. `fresh`: nobody has written it yet. `owner`:
// the module or library of a variable, else 0. CUDA_ERROR_NOT_SUPPORTED if there can be no pages at its
// addresses.
CUresult AddMigrating(const HostAllocation& allocation, WireHandle owner, bool fresh);
// The allocation or, if asked for, variable that holds the address.
bool FindMigrating(uint64_t address, HostAllocation* allocation, bool variables);
bool SetMigratingSyncMemops(uint64_t address, bool value);
// After it was freed.
void ForgetMigrating(uint64_t address);
void ForgetMigratingOf(const Object* context);
void ForgetMigratingOf(WireHandle owner);

// As work::ManagedPages::give_back, also without a watch.
void GiveBackManagedPages();

}  // namespace causeway::guest
