// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/release/build_stamp.h"

#include "ivshmem_ring/release/api_hash.h"

namespace causeway {

static_assert(sizeof(CAUSEWAY_VERSION) <= kReleaseBytes);
constexpr BuildStamp kBuildStamp = {
    {'c', 'a', 'u', 's', 'e', 'w', 'a', 'y', '-', 's', 't', 'a', 'm', 'p', '-', '1'},
    kWireHash,
    CAUSEWAY_VERSION};

}  // namespace causeway
