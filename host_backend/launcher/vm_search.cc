// SPDX-License-Identifier: Apache-2.0
// Looks for a file's other user in /proc/PID/maps, for which the daemon lacks the right.
#include "host_backend/launcher/vm_search.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include <memory>

namespace causeway::launcher {
namespace {

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

File Open(pid_t pid, const char* name) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
  return {fopen(path, "re"), &fclose};
}

// The beginning of the next line, as much as there is room for; the rest of the line is passed over.
template <size_t kRoom>
bool NextLine(FILE* file, char (&line)[kRoom]) {
  if (file == nullptr || fgets(line, kRoom, file) == nullptr) return false;
  if (strchr(line, '\n') != nullptr) return true;
  for (int c = getc(file); c != '\n' && c != EOF;) c = getc(file);
  return true;
}

pid_t ParentOf(pid_t pid) {
  const File status = Open(pid, "status");
  return ParentIn(status.get());
}

bool Maps(pid_t pid, const struct stat& file) {
  const File maps = Open(pid, "maps");
  return MapsFile(maps.get(), file.st_dev, file.st_ino);
}

bool IsAllowed(pid_t pid, const struct stat& file) {
  const File status = Open(pid, "status");
  return MayOpen(status.get(), file);
}

// Whether one of the numbers of a line of any length, from here on, is that one. Reads to its end.
bool RestHas(FILE* file, unsigned long wanted) {
  bool found = false, any = false;
  unsigned long number = 0;
  for (int c = getc(file); c != EOF; c = getc(file)) {
    if (c >= '0' && c <= '9') {
      number = number * 10 + static_cast<unsigned long>(c - '0');
      any = true;
      continue;
    }
    found = found || (any && number == wanted);
    any = false;
    number = 0;
    if (c == '\n') break;
  }
  return found;
}

}  // namespace

bool MapsFile(FILE* maps, dev_t device, ino_t inode) {
  char line[256];  // what comes before the name is shorter
  while (NextLine(maps, line)) {
    unsigned major_number = 0, minor_number = 0;
    unsigned long number = 0;
    if (sscanf(line, "%*x-%*x %*s %*x %x:%x %lu", &major_number, &minor_number, &number) == 3 &&
        number == inode && major_number == major(device) && minor_number == minor(device)) {
      return true;
    }
  }
  return false;
}

pid_t ParentIn(FILE* status) {
  char line[256];
  int parent = 0;
  while (NextLine(status, line)) {
    if (sscanf(line, "PPid: %d", &parent) == 1) return parent;
  }
  return 0;
}

bool MayOpen(FILE* status, const struct stat& file) {
  constexpr mode_t kOwner = S_IRUSR | S_IWUSR, kGroup = S_IRGRP | S_IWGRP, kOther = S_IROTH | S_IWOTH;
  unsigned user = ~0u, group = ~0u;
  bool in_group = false;
  // "Name:" comes first and is the process's choice, in one line: the kernel writes its control characters as text.
  char word[16];
  while (status != nullptr && fscanf(status, "%15s", word) == 1) {
    if (strcmp(word, "Uid:") == 0) {
      if (fscanf(status, "%*u %u", &user) != 1) return false;
    } else if (strcmp(word, "Gid:") == 0) {
      if (fscanf(status, "%*u %u", &group) != 1) return false;
    } else if (strcmp(word, "Groups:") == 0) {
      in_group = RestHas(status, file.st_gid);
      break;
    }
    for (int c = getc(status); c != '\n' && c != EOF;) c = getc(status);
  }
  if (user == ~0u || group == ~0u) return false;
  const auto allows = [&](mode_t bits) { return (file.st_mode & bits) == bits; };
  if (user == 0) return true;
  if (user == file.st_uid) return allows(kOwner);
  return allows(in_group || group == file.st_gid ? kGroup : kOther);
}

pid_t FindMapper(const struct stat& file, pid_t launcher, pid_t daemon) {
  const std::unique_ptr<DIR, int (*)(DIR*)> processes(opendir("/proc"), &closedir);
  while (const dirent* entry = processes ? readdir(processes.get()) : nullptr) {
    const pid_t pid = atoi(entry->d_name);
    if (pid <= 0 || pid == launcher || pid == daemon || !Maps(pid, file) || !IsAllowed(pid, file) ||
        ParentOf(pid) == launcher)
      continue;
    return pid;
  }
  return 0;
}

}  // namespace causeway::launcher
