// SPDX-License-Identifier: Apache-2.0
// Folders of compiled kernels. CACHE/USER is the daemon's, open to pass through; in it lies `kernels`, which
// is that user's alone. When a user id changes hands the daemon moves the whole to
// CACHE/discarded/USER-NUMBER, where only the daemon gets through, and starts afresh.
#pragma once
#include <stdint.h>

namespace causeway::launcher {

inline constexpr char kDiscarded[] = "discarded";
inline constexpr char kKernels[] = "kernels";

// Makes CACHE/USER/kernels. 0 or errno.
int MakeCacheFolder(int cache, uint32_t user);
// Becomes the user, for good, and empties CACHE/USER/kernels if more than so many MiB are in it
// (host_backend/sandbox/cache_quota.h). The calling process has nothing else to do.
void HoldCacheFolder(int cache, uint32_t user, uint32_t mib);
// Becomes the user, for good, and removes what it owns below CACHE/discarded/USER-NUMBER/kernels. The calling
// process has nothing else to do.
void EmptyDiscarded(int cache, uint32_t user, uint32_t number);

}  // namespace causeway::launcher
