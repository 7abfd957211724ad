// SPDX-License-Identifier: Apache-2.0
// Looks for a file's other user in /proc/PID/maps.
#include "host_backend/daemon/vm_process.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <memory>
#include <string>

namespace causeway::daemon {
namespace {

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

File Open(pid_t pid, const char* name) {
  return {fopen(("/proc/" + std::to_string(pid) + "/" + name).c_str(), "re"), &fclose};
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

UniqueFd FindVmProcess(dev_t device, ino_t inode) {
  const std::unique_ptr<DIR, int (*)(DIR*)> processes(opendir("/proc"), &closedir);
  while (const dirent* entry = processes ? readdir(processes.get()) : nullptr) {
    const pid_t pid = atoi(entry->d_name);
    if (pid <= 0 || pid == getpid() || !Maps(pid, device, inode) || ParentOf(pid) == getpid()) continue;
    return UniqueFd(int(syscall(SYS_pidfd_open, pid, 0)));
  }
  return UniqueFd();
}

}  // namespace causeway::daemon
