// SPDX-License-Identifier: Apache-2.0
// The only file of the daemon that knows the API rows: they are large, and it needs no more than their hash.
#include "host_backend/daemon/api_hash.h"

#include "ivshmem_ring/messages/api_hash.h"

namespace causeway {

uint64_t ApiHash() {
  return kWireHash;
}

}  // namespace causeway
