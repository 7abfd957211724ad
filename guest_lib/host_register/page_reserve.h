// SPDX-License-Identifier: Apache-2.0
// Memory from the machine's reserve of huge pages (MAP_HUGETLB, hugetlbfs). The kernel changes such memory by
// whole huge pages only and does not duplicate its mappings, so the region cannot replace a part of it.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <vector>

#include "guest_lib/addresses/mappings.h"

namespace causeway::guest {

// Turns private memory of that kind, among `mappings`, into ordinary memory with the same bytes, for good.
// That includes all of each huge page in which one of the mappings begins or ends. Shared memory cannot be
// turned: the result is CUDA_ERROR_NOT_SUPPORTED. *changed says whether the mappings there are others now.
CUresult LeaveReservedPages(const std::vector<Mapping>& mappings, bool* changed);

}  // namespace causeway::guest
