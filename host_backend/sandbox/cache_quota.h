// SPDX-License-Identifier: Apache-2.0
// How much the folder of a scope's compiled kernels may hold. The driver bounds it by itself as long as it is
// the driver that writes there; a worker that was taken writes what it likes.
#pragma once
#include <cstdint>

namespace causeway::sandbox {

struct CacheUse {
  uint64_t bytes = 0;  // on the disk, before
  uint64_t files = 0;  // and folders
  bool emptied = false;
};

// A driver's cache of 4 GiB, the most that it keeps, has fewer.
inline constexpr uint64_t kMostCacheFiles = 65'536;

// Empties the folder if more is in it than `most_bytes`, or than kMostCacheFiles: the driver compiles again
// what it does not find, and its index goes with what it lists. Follows no link and enters no other file
// system; as its owner.
CacheUse HoldToQuota(int folder, uint64_t most_bytes);

}  // namespace causeway::sandbox
