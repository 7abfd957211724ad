// SPDX-License-Identifier: Apache-2.0
// Managed memory does not end while this worker copies to or from it. NVIDIA's driver (580.159) never ends a
// copy of a block that is freed while the copy is queued: its thread spins in cuStreamSynchronize, and
// cuMemFree waits for it. Natively cuMemFree waits for all work on the block as well, so an honest program
// sees no difference.
#pragma once
#include <mutex>
#include <shared_mutex>

namespace causeway::host {

// Held shared from before a copy is checked until it is done, and alone by what ends managed memory. A leaf:
// its holder takes the driver's locks and no other of the worker's. A free waits for copies that have begun,
// each of which ends with the stream's earlier work.
inline std::shared_mutex& ManagedCopies() {
  static std::shared_mutex mutex;
  return mutex;
}

// A call of the driver that may end managed memory.
template <class Call>
auto WithoutManagedCopies(Call call) {
  const std::lock_guard copies(ManagedCopies());
  return call();
}

}  // namespace causeway::host
