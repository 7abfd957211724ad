// SPDX-License-Identifier: Apache-2.0
// The driver's private tables, by UUID: what cuGetExportTable hands out. All are served in the guest.
#pragma once

#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::guest {

// The table for these 16 bytes, or null. The address is the same at every call: the integrity value contains
// it.
const void* FindExportTable(const CUuuid& uuid);

}  // namespace causeway::guest
