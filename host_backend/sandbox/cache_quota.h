// SPDX-License-Identifier: Apache-2.0
// How much the folder of a scope's compiled kernels may hold. The driver keeps to a bound of its own, but an
// attacker who has taken over a worker may write there without one.
#pragma once
#include <cstdint>

namespace causeway::sandbox {

struct CacheUse {
  uint64_t bytes =
      0;  // on the disk, before it was emptied; of a file with holes what it may become without growing
  uint64_t files = 0;  // with folders
  bool emptied = false;
  bool watched = false;  // `changes` tells of all that grows from now on
};

// A driver's cache of 4 GiB, the most that it keeps, has fewer.
inline constexpr uint64_t kMostCacheFiles = 65'536;

// Empties the folder if it holds more than `most_bytes`, or than `most_files`; the driver compiles again what
// it does not find. It follows no link and enters no other file system. The caller runs as the owner. `changes`: an
// inotify descriptor, -1 for none; it is to be read from when something has been written in the folder or below, so that nobody
// needs to look again before. The kernel keeps a few bytes for each folder, however much is written.
CacheUse HoldToQuota(int folder, uint64_t most_bytes, uint64_t most_files = kMostCacheFiles,
                     int changes = -1);

// Removes all that the folder has, however deep it lies and whatever permissions it has, but looks at `most_files` at most: what is
// then left, the next call removes. The caller runs as the owner.
void EmptyFolder(int folder, uint64_t most_files);

}  // namespace causeway::sandbox
