// SPDX-License-Identifier: Apache-2.0
// To be preloaded in a VM that has one virtual processor and whose host has several: the guest's library then waits as in a VM with
// several. Where it knows of one it never spins but yields, and a yield takes such a VM's kernel a quarter of a millisecond.
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>

int sched_getaffinity(pid_t process, size_t bytes, cpu_set_t* set) {
  (void)process;
  memset(set, 0, bytes);
  for (int i = 0; i < 8; ++i) CPU_SET_S(i, bytes, set);
  return 0;
}
