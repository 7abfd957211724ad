// SPDX-License-Identifier: Apache-2.0
// For a test of a thread that has one processor only.
#pragma once
#include <sched.h>

#include <cstddef>

namespace causeway::test {

// Binds the calling thread, and threads that it starts, to one of its processors; `before` receives what it had.
// False: the kernel refused.
inline bool UseOneProcessor(cpu_set_t* before) {
  if (sched_getaffinity(0, sizeof *before, before) != 0) return false;
  cpu_set_t one;
  CPU_ZERO(&one);
  for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i) {
    if (CPU_ISSET(i, before)) CPU_SET(i, &one);
  }
  return sched_setaffinity(0, sizeof one, &one) == 0;
}

}  // namespace causeway::test
