// SPDX-License-Identifier: Apache-2.0
// The hash of all rows of this build, which must be the guest's too (ivshmem_ring/messages/api_hash.h).
#pragma once
#include <cstdint>

namespace causeway {

uint64_t ApiHash();

}  // namespace causeway
