// SPDX-License-Identifier: Apache-2.0
// Text that kernels print (printf to stdout, assert to stderr) arrives in the process that owns the driver,
// which is the worker. It is caught here and given to the guest process at the driver's synchronisation
// points. Any thread may call these functions.
#pragma once
#include <cstddef>
#include <span>

namespace causeway::host {

class Output {
 public:
  // Redirects this process's stdout and stderr into memory files; to be called once. The worker's own log
  // goes to LogFd(), a copy of the original stderr. False: it failed.
  static bool Redirect();
  static int LogFd();

  // True some fifty times a second: time to look for text although none is expected.
  bool IsLookDue();
  // Three system calls to find unread text; true at most once per text until Take() has drained it.
  bool Pending();
  // Copies unread text: pieces of {u32 stream (1 or 2), u32 bytes, text}; returns bytes used, 0 when drained.
  size_t Take(std::span<std::byte> space);
  // Copies the end of what stderr got, and returns its length in bytes. A signal handler may call it.
  static size_t LastError(char* text, size_t bytes);
};

}  // namespace causeway::host
