// SPDX-License-Identifier: Apache-2.0
// A managed block does not end while this worker copies to or from it. NVIDIA's driver (580.159) never ends a
// copy whose block is freed while the copy is queued: its thread spins in cuStreamSynchronize, and cuMemFree
// waits for it. Natively cuMemFree waits for all work on the block as well, so an honest program sees no
// difference. Blocks alone are looked at: copies of others go on during a free, because what a free waits for
// may be a host function that needs them. A copy waits for a free of its own block: the driver may have given
// the address to a new block, which another thread already writes to, before the thread that freed the old one
// says that its free has ended. A copy to a block that is gone is then refused by the driver.
#pragma once
#include <cstdint>
#include <span>

#include "ivshmem_ring/messages/managed_messages.h"

namespace causeway::host {

// While it lives the pieces are copied. Made, it has waited for the frees of any of them that had begun. Threads:
// any; the list's mutex is a leaf.
class ManagedCopy {
 public:
  explicit ManagedCopy(std::span<const ManagedPiece> pieces);
  ~ManagedCopy();
  ManagedCopy(const ManagedCopy&) = delete;
  ManagedCopy& operator=(const ManagedCopy&) = delete;

 private:
  const std::span<const ManagedPiece> pieces_;
};

// While it lives the range is freed. Made, it has waited for the copies that had begun; each ends with the
// earlier work of its stream.
class ManagedFree {
 public:
  ManagedFree(uint64_t address, uint64_t bytes);
  ~ManagedFree();
  ManagedFree(const ManagedFree&) = delete;
  ManagedFree& operator=(const ManagedFree&) = delete;

 private:
  const ManagedPiece range_;
};

}  // namespace causeway::host
