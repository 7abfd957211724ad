// SPDX-License-Identifier: Apache-2.0
#include "host_backend/sandbox/cache_quota.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "host_backend/common/unique_fd.h"

namespace causeway::sandbox {
namespace {

// The driver's own folders are two deep. A walk has a descriptor open for each.
constexpr int kDeepest = 16;

UniqueFd OpenFolder(int parent, const char* name) {
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  UniqueFd folder(openat(parent, name, kFlags));
  // What its owner has closed to itself is counted as well.
  if (!folder && errno == EACCES && fchmodat(parent, name, 0700, 0) == 0)
    folder.reset(openat(parent, name, kFlags));
  return folder;
}

// Before the folder is read, so that nothing that comes meanwhile is missed.
bool WatchFolder(int changes, int folder) {
  // Once each: there are never more events than folders. What a program writes by a mapping tells nobody, but cannot make a
  // file longer.
  constexpr uint32_t kGrows = IN_MODIFY | IN_CREATE | IN_MOVED_TO | IN_ONESHOT | IN_ONLYDIR;
  const std::string path = "/proc/self/fd/" + std::to_string(folder);
  return inotify_add_watch(changes, path.c_str(), kGrows) >= 0;
}

// Looks at all that a folder has, or removes it.
class Walk {
 public:
  Walk(dev_t device, uint64_t most_files, int changes)
      : device_(device), most_files_(most_files), changes_(changes) {
    use_.watched = changes >= 0;
  }
  // `folder` outlives this.
  static Walk Removing(int folder, dev_t device, uint64_t most_files) {
    Walk walk(device, most_files, -1);
    walk.top_ = folder;
    return walk;
  }

  // False: there are more than it looks at.
  bool Enter(UniqueFd folder, int depth) {
    if (removes()) fchmod(folder.get(), 0700);  // its owner may have closed it to itself
    use_.watched = use_.watched && WatchFolder(changes_, folder.get());
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
  // Whether it has moved folders to the top, where they may not have been seen, since this was asked.
  bool TakeMoved() { return std::exchange(moved_, false); }

 private:
  bool removes() const { return top_ >= 0; }
  bool Visit(int parent, const char* name, int depth) {
    struct stat info {};
    if (fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return true;  // gone meanwhile
    const uint64_t bytes =
        std::max(uint64_t(info.st_blocks) * 512, S_ISREG(info.st_mode) ? uint64_t(info.st_size) : 0);
    // A file with holes may say that it has 2^63 bytes.
    use_.bytes += std::min(bytes, ~uint64_t{0} - use_.bytes);
    const bool folder = S_ISDIR(info.st_mode) && info.st_dev == device_;
    if (folder) {
      if (depth == kDeepest) return removes() && MoveUp(parent, name);
      UniqueFd inner = OpenFolder(parent, name);
      if (!inner) use_.watched = false;
      if (inner && !Enter(std::move(inner), depth + 1)) return false;
    }
    if (removes()) unlinkat(parent, name, folder ? AT_REMOVEDIR : 0);
    return true;
  }
  // However deep somebody has made folders, all are emptied in the end.
  bool MoveUp(int parent, const char* name) {
    const std::string free = "deep-" + std::to_string(use_.files);
    moved_ = renameat2(parent, name, top_, free.c_str(), RENAME_NOREPLACE) == 0 || moved_;
    return true;
  }

  const dev_t device_;
  const uint64_t most_files_;
  const int changes_;
  int top_ = -1;  // -1: it removes nothing
  bool moved_ = false;
  CacheUse use_;
};

}  // namespace

void EmptyFolder(int folder, uint64_t most_files) {
  struct stat info {};
  if (fstat(folder, &info) != 0) return;
  Walk walk = Walk::Removing(folder, info.st_dev, most_files);
  do {
    if (!walk.Enter(OpenFolder(folder, "."), 0)) return;
  } while (walk.TakeMoved());
}

CacheUse HoldToQuota(int folder, uint64_t most_bytes, uint64_t most_files, int changes) {
  struct stat info {};
  if (fstat(folder, &info) != 0) return {};
  Walk look(info.st_dev, most_files, changes);
  const bool all_seen = look.Enter(OpenFolder(folder, "."), 0);
  CacheUse use = look.use();
  if (all_seen && use.bytes <= most_bytes) return use;
  // As many as it has seen at most, so that nobody waits for ever; the next look goes on.
  EmptyFolder(folder, 4 * most_files);
  use.emptied = true;
  use.watched = false;
  return use;
}

}  // namespace causeway::sandbox
