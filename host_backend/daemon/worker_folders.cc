// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/worker_folders.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "host_backend/daemon/log.h"
#include "host_backend/result.h"

namespace causeway::daemon {
namespace {

// Of root's own, and open to those who know a name inside.
constexpr mode_t kPassable = 0711;

bool MakeFolder(const std::string& path, mode_t mode) {
  return (mkdir(path.c_str(), mode) == 0 || errno == EEXIST) && chmod(path.c_str(), mode) == 0;
}

std::string Variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

// Scopes have names of any kind; their folders have names of 16 digits.
std::string FolderName(const std::string& scope) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : scope) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  char name[20];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(hash));
  return name;
}

}  // namespace

WorkerFolders::WorkerFolders(const std::string& socket, bool users)
    : users_(users), folder_(socket + ".workers") {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);  // of a daemon that was killed
  if (!MakeFolder(folder_, kPassable)) {
    LogWarning("the folder " + folder_ + " cannot be made: " + ErrnoText() +
               "; workers share nothing in /dev/shm");
    folder_.clear();
    return;
  }
  // In the host's /dev/shm, so that it is memory; workers see it in that one's place.
  const std::string shared = "/dev/shm/causeway-workers-" + FolderName(socket);
  struct stat found {};
  if (lstat(shared.c_str(), &found) == 0 && found.st_uid == geteuid())
    std::filesystem::remove_all(shared, ignored);
  if (mkdir(shared.c_str(), 01777) == 0 && chmod(shared.c_str(), 01777) == 0) shm_ = shared;
  const std::string chosen = Variable("CUDA_CACHE_PATH");
  if (!users_) {
    cache_ = !chosen.empty()            ? chosen
             : Variable("HOME").empty() ? ""
                                        : Variable("HOME") + "/.nv/ComputeCache";
    if (!cache_.empty()) std::filesystem::create_directories(cache_, ignored);
    return;
  }
  const std::string base = chosen.empty() ? "/var/cache/causeway" : chosen;
  std::filesystem::create_directories(base, ignored);
  if (MakeFolder(base + "/scopes", kPassable)) {
    cache_ = base + "/scopes";
  } else {
    LogWarning("compiled kernels are not kept: " + base + "/scopes cannot be made: " + ErrnoText());
  }
}

WorkerFolders::~WorkerFolders() {
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  if (!shm_.empty()) std::filesystem::remove_all(shm_, ignored);
}

std::string WorkerFolders::NewLink() {
  if (!users_ || cache_.empty() || folder_.empty()) return {};
  return folder_ + "/cache-" + std::to_string(next_++);
}

void WorkerFolders::Point(const std::string& link, const std::string& scope, uint32_t user) {
  if (link.empty()) return;
  const std::string place = cache_ + "/" + FolderName(scope);
  struct stat found {};
  // What another user left there is not read: ids may have changed hands since.
  if (lstat(place.c_str(), &found) == 0 && (found.st_uid != user || !S_ISDIR(found.st_mode))) {
    std::error_code ignored;
    std::filesystem::remove_all(place, ignored);
  }
  if (mkdir(place.c_str(), 0700) == 0 && lchown(place.c_str(), user, user) != 0) rmdir(place.c_str());
  unlink(link.c_str());
  if (symlink(place.c_str(), link.c_str()) != 0)
    LogWarning("a worker keeps no compiled kernels: the link " + link + " cannot be made: " + ErrnoText());
}

void WorkerFolders::Drop(const std::string& link) {
  if (!link.empty()) unlink(link.c_str());
}

}  // namespace causeway::daemon
