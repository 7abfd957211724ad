// SPDX-License-Identifier: Apache-2.0
// This library is preloaded into the programs of the VM that bench.sh boots. It tells them that they may run on eight processors, although the
// VM has one. Causeway's guest library never spins where it knows of one processor; it yields, and a yield is a system call, which takes a
// quarter of a millisecond in this VM. Spinning is right here, because the worker runs on another processor of the host.
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>

int sched_getaffinity(pid_t process, size_t bytes, cpu_set_t* set) {
  (void)process;
  memset(set, 0, bytes);
  for (int i = 0; i < 8; ++i) CPU_SET_S(i, bytes, set);
  return 0;
}
