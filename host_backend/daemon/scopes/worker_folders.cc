// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/scopes/worker_folders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "host_backend/common/result.h"
#include "host_backend/daemon/loop/loop_work.h"
#include "host_backend/daemon/process/file_lock.h"
#include "host_backend/daemon/process/launcher_link.h"
#include "host_backend/daemon/process/log.h"
#include "host_backend/launcher/cache_folder.h"

namespace causeway::daemon {
namespace {

constexpr char kShared[] = "/dev/shm/causeway-workers-";  // and 16 digits
constexpr char kScopeFile[] = "/scope";  // in a cache: the name of the scope that it belongs to
constexpr char kNowhere[] = "/nowhere";  // where links lead before the scope is known: nobody may write there

// Of the daemon's own, and open to those who know a name inside.
constexpr mode_t kPassable = 0711;

bool MakeFolder(const std::string& path, mode_t mode) {
  return (mkdir(path.c_str(), mode) == 0 || errno == EEXIST) && chmod(path.c_str(), mode) == 0;
}

std::string Variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

// Sockets have names of any kind; their folders have names of 16 digits.
std::string FolderName(const std::string& socket) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : socket) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  char name[20];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(hash));
  return name;
}

std::vector<std::string> Entries(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> entries;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    entries.push_back(at->path());
  return entries;
}

void Remove(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

UniqueFd OpenOwnFolder(const std::string& path) {
  UniqueFd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (folder && (fstat(folder.get(), &info) != 0 || info.st_uid != geteuid())) folder.reset();
  return folder;
}

// A daemon holds the lock of its folder, which ends with it: a pid could be another's by now.
void RemoveOfTheDead() {
  for (const std::string& path : Entries("/dev/shm")) {
    if (!path.starts_with(kShared)) continue;
    const UniqueFd folder = OpenOwnFolder(path);
    if (folder && flock(folder.get(), LOCK_EX | LOCK_NB) == 0) Remove(path);
  }
}

bool IsAt(int folder, const std::string& path) {
  struct stat opened {
  }, named{};
  return fstat(folder, &opened) == 0 && lstat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

WorkerFolders::WorkerFolders(const std::string& socket, bool users)
    : users_(users), folder_(socket + ".workers") {
  Remove(folder_);  // of a daemon that was killed
  RemoveOfTheDead();
  if (!MakeFolder(folder_, kPassable)) {
    LogWarning("the folder " + folder_ + " cannot be made: " + ErrnoText() +
               "; workers share nothing in /dev/shm");
    folder_.clear();
    return;
  }
  // In the host's /dev/shm, so that it is memory; workers see it in that one's place.
  MakeShared(kShared + FolderName(socket));
  std::error_code ignored;
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
  const std::string cache = base + "/scopes";
  if (MakeFolder(cache, kPassable) && MakeFolder(cache + "/" + launcher::kDiscarded, 0700)) {
    cache_ = cache;
    MakeLinks(base + "/links-" + FolderName(socket));
  } else {
    LogWarning("compiled kernels are not kept: " + cache + " cannot be made: " + ErrnoText());
  }
}

WorkerFolders::WorkerFolders(const Json& state, UniqueFd lock)
    : users_(state.at("users").get<bool>()),
      folder_(state.at("folder").get<std::string>()),
      shm_(state.at("shm").get<std::string>()),
      shm_lock_(std::move(lock)),
      cache_(state.at("cache").get<std::string>()),
      links_(state.at("links").get<std::string>()) {}

Json WorkerFolders::State() const {
  return {{"users", users_}, {"folder", folder_}, {"shm", shm_}, {"cache", cache_}, {"links", links_}};
}

// Beside the caches and not beside the socket, whose folder may let nobody through.
void WorkerFolders::MakeLinks(const std::string& path) {
  Remove(path);  // of a daemon that was killed; the socket's lock says that none lives
  if (MakeFolder(path, kPassable) && MakeFolder(path + kNowhere, 0555)) {
    links_ = path;
  } else {
    LogWarning("compiled kernels are not kept: " + path + " cannot be made: " + ErrnoText());
  }
}

// Another that starts at this moment may take a folder that is not locked yet for a dead one's.
void WorkerFolders::MakeShared(const std::string& path) {
  constexpr int kTries = 5;
  for (int tries = 0; tries < kTries; ++tries) {
    if (mkdir(path.c_str(), 01777) != 0 && errno != EEXIST) return;
    UniqueFd folder = OpenOwnFolder(path);
    if (!folder || !LockExclusively(folder.get()) || !IsAt(folder.get(), path)) continue;
    for (const std::string& entry : Entries(path)) Remove(entry);
    if (fchmod(folder.get(), 01777) != 0) return;
    shm_lock_ = std::move(folder);
    shm_ = path;
    return;
  }
}

WorkerFolders::~WorkerFolders() {
  if (!folder_.empty()) Remove(folder_);
  if (!shm_.empty()) Remove(shm_);
  if (!links_.empty()) Remove(links_);
}

void WorkerFolders::UseLauncher(LauncherLink* launcher) {
  launcher_ = launcher;
  if (!users_ || cache_.empty()) return;
  // What a former daemon discarded: emptied folders can go, others are tried again.
  for (const std::string& path : Entries(cache_ + "/" + launcher::kDiscarded)) {
    Remove(path);
    unsigned user = 0, number = 0;
    const std::string name = path.substr(path.rfind('/') + 1);
    if (access(path.c_str(), F_OK) == 0 && std::sscanf(name.c_str(), "%u-%u", &user, &number) == 2)
      launcher_->ClearCache(user, number);
  }
}

uint64_t WorkerFolders::NewLink() {
  const LoopPart part("folders: new link");
  if (links_.empty()) return 0;
  if (symlink((links_ + kNowhere).c_str(), LinkPath(next_).c_str()) != 0) {
    LogWarning("a worker keeps no compiled kernels: the link " + LinkPath(next_) +
               " cannot be made: " + ErrnoText());
    return 0;
  }
  return next_++;
}

void WorkerFolders::Discard(const std::string& outer, uint32_t user) {
  constexpr int kTries = 1000;
  for (int tries = 0; tries < kTries; ++tries, ++next_discarded_) {
    const std::string place = cache_ + "/" + launcher::kDiscarded + "/" + std::to_string(user) + "-" +
                              std::to_string(next_discarded_);
    if (access(place.c_str(), F_OK) == 0 || rename(outer.c_str(), place.c_str()) != 0) continue;
    launcher_->ClearCache(user, next_discarded_++);
    return;
  }
}

// The user id may have been another scope's, whose kernels this one could have changed, and must not read.
bool WorkerFolders::Prepare(const std::string& outer, const std::string& scope, uint32_t user) {
  struct stat found {};
  if (ReadText(outer + kScopeFile) == scope &&
      lstat((outer + "/" + launcher::kKernels).c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
      found.st_uid == user) {
    return true;
  }
  if (access(outer.c_str(), F_OK) == 0) Discard(outer, user);
  int problem = 0;
  if (mkdir(outer.c_str(), 0700) != 0) problem = errno;
  if (problem == 0 && !(std::ofstream(outer + kScopeFile, std::ios::binary) << scope).flush()) problem = EIO;
  if (problem == 0) problem = launcher_->MakeCache(user);
  // Last, so that nobody gets through to one that was begun.
  if (problem == 0 && chmod(outer.c_str(), kPassable) != 0) problem = errno;
  if (problem == 0) return true;
  LogWarning("a worker keeps no compiled kernels: " + outer + " cannot be made: " + ErrnoText(problem));
  return false;
}

void WorkerFolders::Point(uint64_t link, const std::string& scope, uint32_t user) {
  const LoopPart part("folders: point");
  if (link == 0 || links_.empty()) return;
  const std::string outer = cache_ + "/" + std::to_string(user), path = LinkPath(link);
  if (!Prepare(outer, scope, user)) return;
  unlink(path.c_str());
  if (symlink((outer + "/" + launcher::kKernels).c_str(), path.c_str()) != 0)
    LogWarning("a worker keeps no compiled kernels: the link " + path + " cannot be made: " + ErrnoText());
}

void WorkerFolders::Drop(uint64_t link) {
  const LoopPart part("folders: drop link");
  if (link != 0 && !links_.empty()) unlink(LinkPath(link).c_str());
}

}  // namespace causeway::daemon
