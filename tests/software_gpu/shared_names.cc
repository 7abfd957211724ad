// SPDX-License-Identifier: Apache-2.0
#include "tests/software_gpu/shared_names.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdint>
#include <vector>

namespace causeway::software_gpu {
namespace {

void RemoveForsaken() {
  DIR* folder = opendir(kSharedFolder);
  if (folder == nullptr) return;
  std::vector<std::string> forsaken;
  while (const dirent* entry = readdir(folder)) {
    if (strncmp(entry->d_name, kSharedPrefix, strlen(kSharedPrefix)) != 0) continue;
    const std::string process = "/proc/" + std::to_string(atoi(entry->d_name + strlen(kSharedPrefix)));
    if (access((process + "/stat").c_str(), F_OK) != 0 && errno == ENOENT)
      forsaken.push_back(std::string(kSharedFolder) + "/" + entry->d_name);
  }
  closedir(folder);
  for (const auto& path : forsaken) unlink(path.c_str());
}

std::string UsePath() {
  return std::string(kSharedFolder) + "/" + kSharedPrefix + std::to_string(getpid()) + ".use";
}

void RemoveOwn() {
  unlink(UsePath().c_str());
  for (int device = 0; device < 16; ++device) unlink(SharedPath(getpid(), device).c_str());
}

void RemoveAtEnd() {
  [[maybe_unused]] static const bool at_end = atexit(RemoveOwn) == 0;
}

}  // namespace

void NoteUse() {
  static const bool noted = [] {
    RemoveForsaken();
    const int file = open(UsePath().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return false;
    close(file);
    RemoveAtEnd();
    return true;
  }();
  (void)noted;
}

std::string SharedPath(pid_t pid, int device) {
  return std::string(kSharedFolder) + "/" + kSharedPrefix + std::to_string(pid) + "." +
         std::to_string(device);
}

int MakeSharedFile(int device) {
  RemoveForsaken();
  const std::string path = SharedPath(getpid(), device);
  struct statvfs room {};
  constexpr uint64_t kLeast = uint64_t{1} << 30;  // where containers have less, others cannot open it
  if (statvfs(kSharedFolder, &room) != 0 || uint64_t{room.f_bavail} * room.f_frsize < kLeast)
    return memfd_create("software-gpu", MFD_CLOEXEC);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return memfd_create("software-gpu", MFD_CLOEXEC);
  RemoveAtEnd();
  fchmod(file, 0666);  // a process may have become another user since it began
  return file;
}

}  // namespace causeway::software_gpu
