// SPDX-License-Identifier: Apache-2.0
// The folders in which the driver keeps compiled kernels, one for each user as which workers run.
// CACHE/USER is the daemon's, and others may only pass through it; in it lies `kernels`, which is that user's
// alone. Before the user id serves another scope, the daemon moves the whole to CACHE/discarded/USER-NUMBER,
// which no other user can enter. In these functions `cache` is a descriptor of CACHE and stays the caller's.
#pragma once
#include <stdint.h>

namespace causeway::launcher {

inline constexpr char kDiscarded[] = "discarded";
inline constexpr char kKernels[] = "kernels";

// Makes CACHE/USER/kernels. The result is 0 or an errno.
int MakeCacheFolder(int cache, uint32_t user);
// These two are for a process of their own, since they become the user for good. What fails is left undone.
// The first empties CACHE/USER/kernels if more than `mib` MiB are in it (host_backend/sandbox/cache_quota.h).
// With `socket` it sends a CacheWatch there (protocol.h) if the folder was found as it should be and can be watched.
void HoldCacheFolder(int cache, uint32_t user, uint32_t mib, int socket = -1);
// This one removes what the user owns below CACHE/discarded/USER-NUMBER/kernels.
void EmptyDiscarded(int cache, uint32_t user, uint32_t number);

}  // namespace causeway::launcher
