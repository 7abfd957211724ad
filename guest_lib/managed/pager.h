// SPDX-License-Identifier: Apache-2.0
// Managed memory in its migrating form, __managed__ variables, and pinned and registered memory of sessions that share none
// (docs/managed_memory.md, also for what cannot be hidden). The driver has managed memory of its own on the host,
// which it moves between processors as it sees fit, and this process has pages at the same addresses, which are
// filled when the program touches them. One thread serves the faults and everything else that concerns the pages
// (guest_lib/managed/areas.h), so a thread may hold any lock of this library's but kComparedBytes when it faults. Any thread may call these functions.
#pragma once
#include "guest_lib/addresses/host_allocation.h"
#include "ivshmem_ring/protocol/handle.h"

namespace causeway::guest {

// Makes managed memory that the driver has placed accessible. `fresh`: it was not written yet. `owner`: the
// module or library of a variable, else 0. CUDA_ERROR_NOT_SUPPORTED: there can be no pages at its addresses.
CUresult AddMigrating(const HostAllocation& allocation, WireHandle owner, bool fresh);
// Starts the exchange of a block of pinned memory. The host has pages at the same address, which are zero; from now on the bytes
// move between those and the program's pages as the bytes of managed memory do. The program's pages lie in `file`, from `offset` on.
// Of pinned memory, address and `bytes` are multiples of 64 KiB and all of it lies in the file. Of registered memory they are any; the pages
// on which it alone has bytes lie in the file, or none do if `file` is -1 (then at most ComparedBytes::kMost bytes). When no work uses
// registered memory any more, ForgetMigrating ends its exchange and leaves the valid bytes to the program.
// CUDA_ERROR_NOT_SUPPORTED: the pages cannot be mapped a second time. Other errors: this process cannot exchange any memory.
CUresult AddPinned(const HostAllocation& allocation, uint64_t bytes, int file, uint64_t offset);
// Finds the allocation, or with `variables` also the variable, that holds the address. False: there is none.
bool FindMigrating(uint64_t address, HostAllocation* allocation, bool variables);
// Sets CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of what holds the address. False: there is no such memory.
bool SetMigratingSyncMemops(uint64_t address, bool value);
// To be called after it was freed, or with `discard` before: no byte of it matters any more. One allocation, all of a context, all variables of a module or library.
void ForgetMigrating(uint64_t address, bool discard = false);
void ForgetMigratingOf(const Object* context);
void ForgetMigratingOf(WireHandle owner);

// Gives all pages to the driver before work of the device, as work::managed_pages does (submissions.h).
void GiveBackManagedPages();

}  // namespace causeway::guest
