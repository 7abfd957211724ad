// SPDX-License-Identifier: Apache-2.0
#include "host_backend/sandbox/cache_quota.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>

#include "host_backend/common/unique_fd.h"

namespace causeway::sandbox {
namespace {

// The driver's own folders are two deep.
constexpr int kDeepest = 16;

UniqueFd OpenFolder(int parent, const char* name) {
  return UniqueFd(openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
}

class Walk {
 public:
  Walk(dev_t device, bool removes, uint64_t most_files)
      : device_(device), removes_(removes), most_files_(most_files) {}

  // False: there are more than it looks at.
  bool Enter(UniqueFd folder, int depth) {
    const int number = folder.release();
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(number), &closedir);
    if (entries == nullptr) return close(number) == 0;
    while (const dirent* entry = readdir(entries.get())) {
      if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
      if (++use_.files > most_files_ || !Visit(dirfd(entries.get()), entry->d_name, depth)) return false;
    }
    return true;
  }
  const CacheUse& use() const { return use_; }

 private:
  bool Visit(int parent, const char* name, int depth) {
    struct stat info {};
    if (fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return true;  // gone meanwhile
    use_.bytes += uint64_t(info.st_blocks) * 512;
    const bool folder = S_ISDIR(info.st_mode) && info.st_dev == device_;
    if (folder) {
      if (depth == kDeepest) return false;
      UniqueFd inner = OpenFolder(parent, name);
      if (inner && !Enter(std::move(inner), depth + 1)) return false;
    }
    if (removes_) unlinkat(parent, name, folder ? AT_REMOVEDIR : 0);
    return true;
  }

  const dev_t device_;
  const bool removes_;
  const uint64_t most_files_;
  CacheUse use_;
};

}  // namespace

CacheUse HoldToQuota(int folder, uint64_t most_bytes, uint64_t most_files) {
  struct stat info {};
  if (fstat(folder, &info) != 0) return {};
  Walk look(info.st_dev, false, most_files);
  const bool all_seen = look.Enter(OpenFolder(folder, "."), 0);
  CacheUse use = look.use();
  if (all_seen && use.bytes <= most_bytes) return use;
  // As many as it has seen at most, so that nobody waits for ever; the next look goes on.
  Walk(info.st_dev, true, 4 * most_files).Enter(OpenFolder(folder, "."), 0);
  use.emptied = true;
  return use;
}

}  // namespace causeway::sandbox
