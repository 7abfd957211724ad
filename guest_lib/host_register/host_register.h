// SPDX-License-Identifier: Apache-2.0
// cuMemHostRegister: memory of this process becomes pinned where it is (docs/registered_memory.md). Its pages
// are replaced by pages of the region with the same bytes (guest_lib/host_register/page_exchange.h), and the
// worker maps those at the same address. So host pointer and device pointer are one, and copies need no step
// in between. Unregistering puts ordinary pages back.
//
// Over TCP nothing is shared: registered memory is ordinary memory that CUDA knows, and is copied as such, until the program names it as
// the device's (guest_lib/host_register/pinned_reach.h).
//
// Any thread may call these functions.
#pragma once
#include <atomic>
#include <cstdint>

#include "guest_lib/addresses/host_allocation.h"
#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::guest {

// How many registrations there are. Without any no address need be looked up.
inline std::atomic<uint32_t> registrations{0};
inline bool AnyRegistered() {
  return registrations.load(std::memory_order_acquire) != 0;
}
// The registration that holds the address. False: there is none.
bool FindRegistered(uint64_t address, HostAllocation* allocation);
// Sets CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of the registration that holds the address. False: there is none.
bool SetRegisteredSyncMemops(uint64_t address, bool value);
// Over TCP: lets the device reach the registration that begins at the address; there need not be one. Results are those of ReachPinned.
CUresult ReachRegistered(uint64_t address);
// Ends all registrations of a context. To be called while the context is still active.
void UnregisterAllOf(Object* context);

}  // namespace causeway::guest
