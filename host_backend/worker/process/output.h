// SPDX-License-Identifier: Apache-2.0
// Text that kernels print (printf to stdout, assert to stderr) arrives in the process that owns the driver:
// here. It is caught and given to the guest process at the same synchronisation points.
#pragma once
#include <cstddef>
#include <span>

namespace causeway::host {

class Output {
 public:
  // Redirects this process's stdout and stderr into memory files, once per process; the worker's own log goes
  // to a copy of the original stderr, see LogFd().
  static bool Redirect();
  static int LogFd();

  // True some fifty times a second: time to look for text although none is expected.
  bool IsLookDue();
  // Three system calls to find unread text; true at most once per text until Take() has drained it.
  bool Pending();
  // Copies unread text: pieces of {u32 stream (1 or 2), u32 bytes, text}; returns bytes used, 0 when drained.
  size_t Take(std::span<std::byte> space);
  // The end of what stderr got; bytes used. Safe in a signal handler.
  static size_t LastError(char* text, size_t bytes);
};

}  // namespace causeway::host
