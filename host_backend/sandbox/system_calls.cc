// SPDX-License-Identifier: Apache-2.0
#include "host_backend/sandbox/system_calls.h"

#include <seccomp.h>

#include <cstdlib>
#include <memory>

namespace causeway::sandbox {
namespace {

constexpr unsigned kFirst = 1, kSecond = 2, kThird = 4;
constexpr int kNo = kNoArgument;

#define CALL_WITH(name, judged, descriptors) \
  { #name, SCMP_SYS(name), judged, descriptors }
#define CALL(name) CALL_WITH(name, kNo, 0)
#define ON_FILE(name) CALL_WITH(name, kNo, kFirst)

// What makes processes, sockets, mounts, keys, programs, or reaches other processes is absent on purpose.
constexpr SystemCall kCalls[] = {
    // Descriptors.
    ON_FILE(read), ON_FILE(write), ON_FILE(readv), ON_FILE(writev), ON_FILE(pread64), ON_FILE(pwrite64),
    ON_FILE(lseek), ON_FILE(close), ON_FILE(fstat), ON_FILE(ftruncate), ON_FILE(fallocate), ON_FILE(flock),
    ON_FILE(fsync), ON_FILE(fdatasync), ON_FILE(fchmod), ON_FILE(fstatfs), ON_FILE(getdents64),
    CALL_WITH(fcntl, 1, kFirst), CALL_WITH(ioctl, 1, kFirst), ON_FILE(dup),
    CALL_WITH(dup2, kNo, kFirst | kSecond), CALL_WITH(dup3, kNo, kFirst | kSecond), CALL(poll), CALL(ppoll),
    CALL(select), CALL(pselect6), CALL(epoll_create1), CALL_WITH(epoll_ctl, kNo, kFirst | kThird),
    ON_FILE(epoll_wait), ON_FILE(epoll_pwait), CALL(eventfd2), CALL(pipe2), CALL(memfd_create),
    CALL(timerfd_create), ON_FILE(timerfd_settime), ON_FILE(sendmsg), ON_FILE(recvmsg), ON_FILE(sendto),
    ON_FILE(recvfrom), ON_FILE(shutdown), ON_FILE(getsockopt), CALL_WITH(setsockopt, 2, kFirst),
    // Files by name: what Landlock, the uid and the namespaces leave.
    CALL(open), ON_FILE(openat), CALL(stat), CALL(lstat), ON_FILE(newfstatat), ON_FILE(statx), CALL(statfs),
    CALL(access), ON_FILE(faccessat), ON_FILE(faccessat2), CALL(readlink), ON_FILE(readlinkat), CALL(getcwd),
    CALL(mkdir), ON_FILE(mkdirat), CALL(rmdir), CALL(unlink), ON_FILE(unlinkat), CALL(rename),
    CALL_WITH(renameat, kNo, kFirst | kThird), CALL_WITH(renameat2, kNo, kFirst | kThird), CALL(chmod),
    CALL(umask), CALL(utime), ON_FILE(utimensat),
    // Memory. mmap has rules of its own.
    CALL_WITH(mmap, 2, 0), CALL(munmap), CALL_WITH(mprotect, 2, 0), CALL_WITH(madvise, 2, 0), CALL(brk),
    CALL(mincore), CALL(msync), CALL(mlock), CALL(mlock2), CALL(munlock), CALL(mbind), CALL(get_mempolicy),
    CALL(set_mempolicy), CALL(membarrier),
    // Threads of this process.
    CALL(futex), CALL_WITH(clone, 0, 0), CALL(exit), CALL(exit_group), CALL(set_robust_list), CALL(rseq),
    CALL(restart_syscall), CALL(sched_yield), CALL(sched_getaffinity), CALL(sched_setaffinity),
    CALL(sched_getparam), CALL(sched_getscheduler), CALL(sched_get_priority_max),
    CALL(sched_get_priority_min), CALL(getpriority), CALL(getpid), CALL(getppid), CALL(gettid), CALL(getuid),
    CALL(geteuid), CALL(getgid), CALL(getegid), CALL_WITH(prctl, 0, 0), CALL(prlimit64), CALL(getrlimit),
    CALL(getrusage), CALL(times), CALL(getcpu), CALL(capget),
    // Signals: to itself only.
    CALL(rt_sigaction), CALL(rt_sigprocmask), CALL(rt_sigreturn), CALL(rt_sigtimedwait), CALL(sigaltstack),
    CALL(tgkill), CALL(kill),
    // Time and the machine.
    CALL(clock_gettime), CALL(clock_getres), CALL(clock_nanosleep), CALL(nanosleep), CALL(gettimeofday),
    CALL(time), CALL(uname), CALL(sysinfo), CALL(getrandom)};

}  // namespace

const SystemCall* FindSystemCall(std::string_view name) {
  for (const SystemCall& call : kCalls) {
    if (name == call.name) return &call;
  }
  return nullptr;
}

const SystemCall* FindSystemCall(int number) {
  for (const SystemCall& call : kCalls) {
    if (number == call.number) return &call;
  }
  return nullptr;
}

std::string NameOfSystemCall(int number) {
  const std::unique_ptr<char, decltype(&std::free)> name(
      seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, number), &std::free);
  return name != nullptr ? name.get() : "call " + std::to_string(number);
}

}  // namespace causeway::sandbox
