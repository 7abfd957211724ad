// SPDX-License-Identifier: Apache-2.0
#include "host_backend/tls/confinement.h"

#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <memory>

#include "host_backend/common/result.h"

namespace causeway::tls {
namespace {

constexpr rlim_t kMostMemory = 64u << 20;  // of data; a connection uses a few MiB

// What moving bytes takes, and malloc.
constexpr int kCalls[] = {
    SCMP_SYS(read),
    SCMP_SYS(write),
    SCMP_SYS(recvfrom),
    SCMP_SYS(sendto),
    SCMP_SYS(recvmsg),
    SCMP_SYS(sendmsg),
    SCMP_SYS(poll),
    SCMP_SYS(shutdown),
    SCMP_SYS(close),
    SCMP_SYS(brk),
    SCMP_SYS(munmap),
    SCMP_SYS(mremap),
    SCMP_SYS(madvise),
    SCMP_SYS(futex),
    SCMP_SYS(getrandom),
    SCMP_SYS(clock_gettime),
    SCMP_SYS(getpid),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
};

}  // namespace

std::string ConfineConnection() {
  const rlimit memory{kMostMemory, kMostMemory}, none{0, 0};
  if (setrlimit(RLIMIT_DATA, &memory) != 0 || setrlimit(RLIMIT_CORE, &none) != 0 ||
      setrlimit(RLIMIT_FSIZE, &none) != 0 || prctl(PR_SET_DUMPABLE, 0) != 0 ||
      prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    return "The limits of a connection's process cannot be set: " + ErrnoText() + ".";
  }
  const std::unique_ptr<void, void (*)(void*)> filter(seccomp_init(SCMP_ACT_KILL_PROCESS), &seccomp_release);
  int failed = filter == nullptr ? -ENOMEM : 0;
  for (const int call : kCalls)
    if (failed == 0) failed = seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 0);
  // Memory that is not executable, of no file.
  if (failed == 0)
    failed = seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(mmap), 2,
                              SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0),
                              SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS));
  if (failed == 0)
    failed = seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1,
                              SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
  if (failed == 0) failed = seccomp_load(filter.get());
  return failed == 0
             ? ""
             : "The filter of a connection's process cannot be installed: " + ErrnoText(-failed) + ".";
}

}  // namespace causeway::tls
