// SPDX-License-Identifier: Apache-2.0
// Stands before the C library's function for every library of the worker. Does what that does, and has the answer noted where
// it concerns a channel group (channel_groups.h).
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host_backend/worker/process/output.h"
#include "host_backend/worker/slices/channel_groups.h"

namespace causeway::host {

// Never destroyed: NVIDIA's library asks the kernel until the process ends.
ChannelGroups& TheChannelGroups() {
  static auto& groups = *new ChannelGroups(
      [](int descriptor, unsigned long request, void* argument) {
        return static_cast<int>(syscall(SYS_ioctl, descriptor, request, argument));
      },
      [](const std::string& sentence) {
        dprintf(Output::LogFd(), "causeway-worker[%d]: %s\n", getpid(), sentence.c_str());
      });
  return groups;
}

}  // namespace causeway::host

extern "C" __attribute__((visibility("default"))) int ioctl(int file, unsigned long what, ...) {
  va_list rest;
  va_start(rest, what);
  void* const asked = va_arg(rest, void*);
  va_end(rest);
  const long result = syscall(SYS_ioctl, file, what, asked);
  if (result != 0) return static_cast<int>(result);
  const int before = errno;
  causeway::host::TheChannelGroups().Note(file, what, asked);
  errno = before;
  return 0;
}
