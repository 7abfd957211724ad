// SPDX-License-Identifier: Apache-2.0
// To be preloaded into a daemon: it is killed when it is about to answer the kernel's question about a worker's system call, once for each
// file $DIES_BEFORE_ANSWER that it finds, which it removes.
#define _GNU_SOURCE
#include <linux/seccomp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int ioctl(int file, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  const char* path = getenv("DIES_BEFORE_ANSWER");
  if (request == SECCOMP_IOCTL_NOTIF_SEND && path != NULL && unlink(path) == 0) kill(getpid(), SIGKILL);
  return (int)syscall(SYS_ioctl, file, request, argument);
}
