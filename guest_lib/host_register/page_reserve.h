// SPDX-License-Identifier: Apache-2.0
// Memory from the machine's reserve of huge pages (MAP_HUGETLB, hugetlbfs). The kernel changes it by whole
// huge pages only and does not duplicate its mappings, so pages of the region cannot take the place of a part
// of it.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <vector>

#include "guest_lib/addresses/mappings.h"

namespace causeway::guest {

// Private memory of that kind becomes ordinary memory with the same bytes, for good; so does all of each huge
// page that one of the mappings only begins or ends in. Shared memory cannot: CUDA_ERROR_NOT_SUPPORTED.
// *changed: the process has other mappings there now.
CUresult LeaveReservedPages(const std::vector<Mapping>& mappings, bool* changed);

}  // namespace causeway::guest
