// SPDX-License-Identifier: Apache-2.0
#include "host_backend/sandbox/system_calls.h"

#include <seccomp.h>

#include <cstdlib>
#include <memory>

namespace causeway::sandbox {
namespace {

constexpr unsigned kFirst = 1, kSecond = 2, kThird = 4;
constexpr int kNo = kNoArgument;

// What makes processes, sockets, mounts, keys, programs, or reaches other processes is absent on purpose.
constexpr SystemCall kCalls[] = {
    // Descriptors.
    {"read", SCMP_SYS(read), kNo, kFirst},
    {"write", SCMP_SYS(write), kNo, kFirst},
    {"readv", SCMP_SYS(readv), kNo, kFirst},
    {"writev", SCMP_SYS(writev), kNo, kFirst},
    {"pread64", SCMP_SYS(pread64), kNo, kFirst},
    {"pwrite64", SCMP_SYS(pwrite64), kNo, kFirst},
    {"lseek", SCMP_SYS(lseek), kNo, kFirst},
    {"close", SCMP_SYS(close), kNo, kFirst},
    {"fstat", SCMP_SYS(fstat), kNo, kFirst},
    {"ftruncate", SCMP_SYS(ftruncate), kNo, kFirst},
    {"fallocate", SCMP_SYS(fallocate), kNo, kFirst},
    {"flock", SCMP_SYS(flock), kNo, kFirst},
    {"fsync", SCMP_SYS(fsync), kNo, kFirst},
    {"fdatasync", SCMP_SYS(fdatasync), kNo, kFirst},
    {"fchmod", SCMP_SYS(fchmod), kNo, kFirst},
    {"fstatfs", SCMP_SYS(fstatfs), kNo, kFirst},
    {"getdents64", SCMP_SYS(getdents64), kNo, kFirst},
    {"fcntl", SCMP_SYS(fcntl), 1, kFirst},
    {"ioctl", SCMP_SYS(ioctl), 1, kFirst},
    {"dup", SCMP_SYS(dup), kNo, kFirst},
    {"dup2", SCMP_SYS(dup2), kNo, kFirst | kSecond},
    {"dup3", SCMP_SYS(dup3), kNo, kFirst | kSecond},
    {"poll", SCMP_SYS(poll)},
    {"ppoll", SCMP_SYS(ppoll)},
    {"select", SCMP_SYS(select)},
    {"pselect6", SCMP_SYS(pselect6)},
    {"epoll_create1", SCMP_SYS(epoll_create1)},
    {"epoll_ctl", SCMP_SYS(epoll_ctl), kNo, kFirst | kThird},
    {"epoll_wait", SCMP_SYS(epoll_wait), kNo, kFirst},
    {"epoll_pwait", SCMP_SYS(epoll_pwait), kNo, kFirst},
    {"eventfd2", SCMP_SYS(eventfd2)},
    {"pipe2", SCMP_SYS(pipe2)},
    {"memfd_create", SCMP_SYS(memfd_create)},
    {"timerfd_create", SCMP_SYS(timerfd_create)},
    {"timerfd_settime", SCMP_SYS(timerfd_settime), kNo, kFirst},
    {"sendmsg", SCMP_SYS(sendmsg), kNo, kFirst},
    {"recvmsg", SCMP_SYS(recvmsg), kNo, kFirst},
    {"sendto", SCMP_SYS(sendto), kNo, kFirst},
    {"recvfrom", SCMP_SYS(recvfrom), kNo, kFirst},
    {"shutdown", SCMP_SYS(shutdown), kNo, kFirst},
    {"getsockopt", SCMP_SYS(getsockopt), kNo, kFirst},
    {"setsockopt", SCMP_SYS(setsockopt), 2, kFirst},
    // Files by name: what Landlock, the uid and the namespaces leave.
    {"open", SCMP_SYS(open)},
    {"openat", SCMP_SYS(openat), kNo, kFirst},
    {"stat", SCMP_SYS(stat)},
    {"lstat", SCMP_SYS(lstat)},
    {"newfstatat", SCMP_SYS(newfstatat), kNo, kFirst},
    {"statx", SCMP_SYS(statx), kNo, kFirst},
    {"statfs", SCMP_SYS(statfs)},
    {"access", SCMP_SYS(access)},
    {"faccessat", SCMP_SYS(faccessat), kNo, kFirst},
    {"faccessat2", SCMP_SYS(faccessat2), kNo, kFirst},
    {"readlink", SCMP_SYS(readlink)},
    {"readlinkat", SCMP_SYS(readlinkat), kNo, kFirst},
    {"getcwd", SCMP_SYS(getcwd)},
    {"mkdir", SCMP_SYS(mkdir)},
    {"mkdirat", SCMP_SYS(mkdirat), kNo, kFirst},
    {"rmdir", SCMP_SYS(rmdir)},
    {"unlink", SCMP_SYS(unlink)},
    {"unlinkat", SCMP_SYS(unlinkat), kNo, kFirst},
    {"rename", SCMP_SYS(rename)},
    {"renameat", SCMP_SYS(renameat), kNo, kFirst | kThird},
    {"renameat2", SCMP_SYS(renameat2), kNo, kFirst | kThird},
    {"chmod", SCMP_SYS(chmod)},
    {"umask", SCMP_SYS(umask)},
    {"utime", SCMP_SYS(utime)},
    {"utimensat", SCMP_SYS(utimensat), kNo, kFirst},
    // Memory. mmap has rules of its own.
    {"mmap", SCMP_SYS(mmap), 2},
    {"munmap", SCMP_SYS(munmap)},
    {"mprotect", SCMP_SYS(mprotect), 2},
    {"madvise", SCMP_SYS(madvise), 2},
    {"brk", SCMP_SYS(brk)},
    {"mincore", SCMP_SYS(mincore)},
    {"msync", SCMP_SYS(msync)},
    {"mlock", SCMP_SYS(mlock)},
    {"mlock2", SCMP_SYS(mlock2)},
    {"munlock", SCMP_SYS(munlock)},
    {"mbind", SCMP_SYS(mbind)},
    {"get_mempolicy", SCMP_SYS(get_mempolicy)},
    {"set_mempolicy", SCMP_SYS(set_mempolicy)},
    {"membarrier", SCMP_SYS(membarrier)},
    // Threads of this process.
    {"futex", SCMP_SYS(futex)},
    {"clone", SCMP_SYS(clone), 0},
    {"exit", SCMP_SYS(exit)},
    {"exit_group", SCMP_SYS(exit_group)},
    {"set_robust_list", SCMP_SYS(set_robust_list)},
    {"rseq", SCMP_SYS(rseq)},
    {"restart_syscall", SCMP_SYS(restart_syscall)},
    {"sched_yield", SCMP_SYS(sched_yield)},
    {"sched_getaffinity", SCMP_SYS(sched_getaffinity)},
    {"sched_setaffinity", SCMP_SYS(sched_setaffinity)},
    {"sched_getparam", SCMP_SYS(sched_getparam)},
    {"sched_getscheduler", SCMP_SYS(sched_getscheduler)},
    {"sched_get_priority_max", SCMP_SYS(sched_get_priority_max)},
    {"sched_get_priority_min", SCMP_SYS(sched_get_priority_min)},
    {"getpriority", SCMP_SYS(getpriority)},
    {"getpid", SCMP_SYS(getpid)},
    {"getppid", SCMP_SYS(getppid)},
    {"gettid", SCMP_SYS(gettid)},
    {"getuid", SCMP_SYS(getuid)},
    {"geteuid", SCMP_SYS(geteuid)},
    {"getgid", SCMP_SYS(getgid)},
    {"getegid", SCMP_SYS(getegid)},
    {"prctl", SCMP_SYS(prctl), 0},
    {"prlimit64", SCMP_SYS(prlimit64)},
    {"getrlimit", SCMP_SYS(getrlimit)},
    {"getrusage", SCMP_SYS(getrusage)},
    {"times", SCMP_SYS(times)},
    {"getcpu", SCMP_SYS(getcpu)},
    {"capget", SCMP_SYS(capget)},
    // Signals: to itself only.
    {"rt_sigaction", SCMP_SYS(rt_sigaction)},
    {"rt_sigprocmask", SCMP_SYS(rt_sigprocmask)},
    {"rt_sigreturn", SCMP_SYS(rt_sigreturn)},
    {"rt_sigtimedwait", SCMP_SYS(rt_sigtimedwait)},
    {"sigaltstack", SCMP_SYS(sigaltstack)},
    {"tgkill", SCMP_SYS(tgkill)},
    {"kill", SCMP_SYS(kill)},
    // Time and the machine.
    {"clock_gettime", SCMP_SYS(clock_gettime)},
    {"clock_getres", SCMP_SYS(clock_getres)},
    {"clock_nanosleep", SCMP_SYS(clock_nanosleep)},
    {"nanosleep", SCMP_SYS(nanosleep)},
    {"gettimeofday", SCMP_SYS(gettimeofday)},
    {"time", SCMP_SYS(time)},
    {"uname", SCMP_SYS(uname)},
    {"sysinfo", SCMP_SYS(sysinfo)},
    {"getrandom", SCMP_SYS(getrandom)},
};

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
