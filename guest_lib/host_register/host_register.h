// SPDX-License-Identifier: Apache-2.0
// cuMemHostRegister: memory of this process becomes pinned where it is. Its pages are replaced by pages of
// the region with the same bytes (guest_lib/host_register/page_exchange.h), and the worker maps those at the
// same address, so host pointer and device pointer are one and copies need no step between. Unregistering
// puts ordinary pages back.
//
// Over TCP nothing is shared: registered memory is ordinary memory that CUDA knows of, and copies treat it
// so.
#pragma once
#include <cstdint>

#include "guest_lib/addresses/host_allocation.h"

namespace causeway::guest {

bool FindRegistered(uint64_t address, HostAllocation* allocation);
// False for memory that is registered but not shared.
bool IsRegisteredInPlace(uint64_t address);
bool SetRegisteredSyncMemops(uint64_t address, bool value);
// Called while the context is still active.
void UnregisterAllOf(Object* context);

}  // namespace causeway::guest
