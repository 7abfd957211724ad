// SPDX-License-Identifier: Apache-2.0
// The driver's private tables, by UUID: what cuGetExportTable hands out. All are served in the guest.
#pragma once

#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::guest {

// The table for this UUID, or null. It lives as long as the process, at one address, because the integrity
// value (integrity.h) is computed from addresses of tables.
const void* FindExportTable(const CUuuid& uuid);

}  // namespace causeway::guest
