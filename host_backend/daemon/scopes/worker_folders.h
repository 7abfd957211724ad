// SPDX-License-Identifier: Apache-2.0
// The few places in the file system that workers write to: the driver's cache of compiled kernels, one of
// each scope's own (host_backend/launcher/cache_folder.h), and what it keeps in /dev/shm for other workers.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include "host_backend/common/json.h"
#include "host_backend/common/unique_fd.h"

namespace causeway::daemon {

class LauncherLink;

class WorkerFolders {
 public:
  // Beside the daemon's socket, whose lock is held. `users`: workers become other users, so that caches are
  // theirs. Removes what daemons of this user left in /dev/shm that are dead.
  WorkerFolders(const std::string& socket, bool users);
  // Those of a daemon of before, as State was, with `lock` as lock() was.
  WorkerFolders(const Json& state, UniqueFd lock);
  Json State() const;
  int lock() const { return shm_lock_.get(); }
  // A link of a worker that goes on: its number is not given again.
  void KnowLink(uint64_t link) { next_ = std::max(next_, link + 1); }
  ~WorkerFolders();
  WorkerFolders(const WorkerFolders&) = delete;
  WorkerFolders& operator=(const WorkerFolders&) = delete;

  // Sets the launcher, which makes and empties what belongs to workers' users. To be called before Point.
  void UseLauncher(LauncherLink* launcher);

  // "" where it could not be made.
  const std::string& shm() const { return shm_; }
  // What a worker may write below; "" : none.
  const std::string& cache() const { return cache_; }
  // Where the links of NewLink lie, as cache-NUMBER; "" : there are none.
  const std::string& links() const { return links_; }

  // A worker's own name for its cache, which is told to the driver before the scope is known; 0: the
  // driver's own place is used. It exists from now on: NVIDIA's driver (580.159) makes the folder of that
  // name when it starts, and keeps no kernels at all where that fails for another reason than that there is
  // one.
  uint64_t NewLink();
  // From now on it leads to the folder of that user, which had no other scope's kernels in it.
  void Point(uint64_t link, const std::string& scope, uint32_t user);
  void Drop(uint64_t link);

 private:
  void MakeShared(const std::string& path);
  void MakeLinks(const std::string& path);
  bool Prepare(const std::string& outer, const std::string& scope, uint32_t user);
  void Discard(const std::string& outer, uint32_t user);
  std::string LinkPath(uint64_t link) const { return links_ + "/cache-" + std::to_string(link); }

  const bool users_;
  LauncherLink* launcher_ = nullptr;
  std::string folder_;
  std::string shm_;
  UniqueFd
      shm_lock_;  // locked as long as this daemon lives: other daemons remove folders that are not locked
  std::string cache_;
  std::string links_;
  uint64_t next_ = 1;
  uint32_t next_discarded_ = 1;
};

}  // namespace causeway::daemon
