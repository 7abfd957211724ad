// SPDX-License-Identifier: Apache-2.0
// Which process runs the VM of a region: ivshmem-plain tells nobody when its VM is powered off, the kernel
// does. Looks for the file's other user in /proc/PID/maps, for which the daemon lacks the right.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysmacros.h>

#include <memory>

#include "host_backend/launcher/launcher.h"

namespace causeway::launcher {
namespace {

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

File Open(pid_t pid, const char* name) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
  return {fopen(path, "re"), &fclose};
}

pid_t ParentOf(pid_t pid) {
  const File file = Open(pid, "status");
  char line[256];
  int parent = 0;
  while (file && fgets(line, sizeof line, file.get()) != nullptr) {
    if (sscanf(line, "PPid: %d", &parent) == 1) return parent;
  }
  return 0;
}

bool Maps(pid_t pid, dev_t device, ino_t inode) {
  const File file = Open(pid, "maps");
  char line[4096 + 128];
  while (file && fgets(line, sizeof line, file.get()) != nullptr) {
    unsigned major_number = 0, minor_number = 0;
    unsigned long number = 0;
    if (sscanf(line, "%*s %*s %*s %x:%x %lu", &major_number, &minor_number, &number) == 3 &&
        number == inode && major_number == major(device) && minor_number == minor(device)) {
      return true;
    }
  }
  return false;
}

}  // namespace

pid_t FindMapper(dev_t device, ino_t inode, pid_t launcher, pid_t daemon) {
  const std::unique_ptr<DIR, int (*)(DIR*)> processes(opendir("/proc"), &closedir);
  while (const dirent* entry = processes ? readdir(processes.get()) : nullptr) {
    const pid_t pid = atoi(entry->d_name);
    if (pid <= 0 || pid == launcher || pid == daemon || !Maps(pid, device, inode) ||
        ParentOf(pid) == launcher)
      continue;
    return pid;
  }
  return 0;
}

}  // namespace causeway::launcher
