// SPDX-License-Identifier: Apache-2.0
// The few places in the file system that workers write to: the driver's cache of compiled kernels, one of
// each scope's own, and what it keeps in /dev/shm for other workers.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace causeway::daemon {

class WorkerFolders {
 public:
  // Beside the daemon's socket, whose lock is held. `users`: workers become other users, so that caches are
  // theirs.
  WorkerFolders(const std::string& socket, bool users);
  ~WorkerFolders();
  WorkerFolders(const WorkerFolders&) = delete;
  WorkerFolders& operator=(const WorkerFolders&) = delete;

  // "" where it could not be made.
  const std::string& shm() const { return shm_; }
  // What a worker may write below; "" : none.
  const std::string& cache() const { return cache_; }

  // A worker's own name for its cache, which is told to the driver before the scope is known; "" : the
  // driver's own place is used.
  std::string NewLink();
  // From now on it leads to the scope's folder, which belongs to that user.
  void Point(const std::string& link, const std::string& scope, uint32_t user);
  void Drop(const std::string& link);

 private:
  const bool users_;
  std::string folder_;
  std::string shm_;
  std::string cache_;
  uint64_t next_ = 1;
};

}  // namespace causeway::daemon
