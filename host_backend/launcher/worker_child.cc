// SPDX-License-Identifier: Apache-2.0
#include "host_backend/launcher/worker_child.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

namespace causeway::launcher {
namespace {

bool WriteFile(const char* path, const char* text) {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool written = write(file, text, strlen(text)) == ssize_t(strlen(text));
  close(file);
  return written;
}

// Without privileges a user namespace gives the right to make the others. Its one user is the caller.
bool EnterNamespaces() {
  if (unshare(kNamespaces) == 0) return true;
  const unsigned uid = geteuid(), gid = getegid();
  if (unshare(CLONE_NEWUSER | kNamespaces) != 0) return false;
  char map[64];
  WriteFile("/proc/self/setgroups", "deny");
  snprintf(map, sizeof map, "%u %u 1", gid, gid);
  WriteFile("/proc/self/gid_map", map);
  snprintf(map, sizeof map, "%u %u 1", uid, uid);
  return WriteFile("/proc/self/uid_map", map);
}

// What drivers of several workers share there lies in their folder; the host's own /dev/shm has the regions.
bool ReplaceSharedMemory(const char* folder) {
  return folder != nullptr && mount(folder, "/dev/shm", nullptr, kBind, nullptr) == 0 &&
         mount(nullptr, "/dev/shm", nullptr, kBindSafely, nullptr) == 0;
}

// The worker's threads mostly sleep, and a thread of a guest spins for what they do. With a short time slice
// whoever wakes one is interrupted for it at once, also a thread that never sleeps; its share of the processors
// stays the same. Kernels before Linux 6.12 have one slice for all and ignore this. On a single processor the
// threads take turns by yielding, for which their slices have to be alike.
void ShortenSlice() {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  if (sched_getaffinity(0, sizeof processors, &processors) == 0 && CPU_COUNT(&processors) == 1) return;
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
  } scheduling{};
  if (syscall(SYS_sched_getattr, 0, &scheduling, sizeof scheduling, 0) != 0 ||
      scheduling.policy != SCHED_OTHER)
    return;
  scheduling.runtime_ns = 100'000;  // the least that Linux takes
  syscall(SYS_sched_setattr, 0, &scheduling, 0);
}

// All but what it takes to become the user of a session's scope. Until then it is root without root's rights,
// because the kernel takes the rights from all threads of a process that ceases to be root.
void KeepFewCapabilities() {
  if (geteuid() != 0) {
    // Where the launcher is no root, but has the right to make others any user. Where not, nothing happens.
    [[maybe_unused]] const long group = syscall(SYS_setresgid, 0, 0, 0);
    [[maybe_unused]] const long user = syscall(SYS_setresuid, 0, 0, 0);
  }
  // With no_new_privs the program gets no more than is left here.
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  KeepCapabilities(1u << CAP_SETUID | 1u << CAP_SETGID);
}

void EndWithLauncher(const ChildPlan& plan) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != plan.parent) _exit(kExecFailed);  // it died before the line above
}

[[noreturn]] void Execute(const ChildPlan& plan) {
  EndWithLauncher(plan);  // the kernel forgets this with the user
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  dup2(plan.output_fd, STDOUT_FILENO);
  dup2(plan.output_fd, STDERR_FILENO);
  fcntl(plan.control_fd, F_SETFD, 0);
  execve(plan.path, plan.arguments, plan.environment);
  _exit(kExecFailed);
}

}  // namespace

bool LimitSharedMemory(const char* folder) {
  constexpr unsigned long kFlags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
  // Drivers keep little there, for events that processes share. Files are bounded as well, as each costs the kernel memory.
  const uint64_t kib =
      uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE)) / kSharedPart / 1024;
  const std::string all = "mode=1777,nr_inodes=65536,size=" + std::to_string(kib) + "k";
  const std::string each =
      all + ",usrquota,usrquota_inode_hardlimit=4096,usrquota_block_hardlimit=" + std::to_string(kib / 2) +
      "k";
  // What the host mounts later is seen here, and what is mounted here is not seen on the host.
  if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0)
    return false;
  return mount("causeway", folder, "tmpfs", kFlags, each.c_str()) == 0 ||
         mount("causeway", folder, "tmpfs", kFlags, all.c_str()) == 0;
}

bool KeepCapabilities(uint64_t kept) {
  for (int capability = 0; capability < 64; ++capability) {
    if ((kept >> capability & 1) == 0) prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
  }
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  for (unsigned word = 0; word < 2; ++word) {
    const uint32_t now = data[word].permitted & uint32_t(kept >> (32 * word));
    data[word] = {now, now, 0};
  }
  return syscall(SYS_capset, &header, data) == 0;
}

void BecomeWorker(const ChildPlan& plan) {
  EndWithLauncher(plan);
  ShortenSlice();
  if (EnterNamespaces()) {
    memcpy(plan.namespaces, "niu", 3);
    if (mount(nullptr, "/", nullptr, kMakePrivate, nullptr) == 0) {
      plan.namespaces[3] = 'm';
      if (ReplaceSharedMemory(plan.shm)) plan.namespaces[4] = 's';
    }
  }
  KeepFewCapabilities();
  // The daemon may be preferred by this limit; a worker may not.
  const rlimit no_nice{0, 0};
  setrlimit(RLIMIT_NICE, &no_nice);
  // Driver mappings then come from 0x2aaa00000000 upwards, where guests keep the same range free.
#ifndef __SANITIZE_THREAD__  // TSan does not start with that layout
  personality(ADDR_COMPAT_LAYOUT);
#endif
  Execute(plan);
}

// A process of the scope's user without any right: what it may look at is what that user may, which its
// worker lets it for as long as this runs.
void BecomeCheckpointer(const ChildPlan& plan, uid_t user, gid_t device_group) {
  EndWithLauncher(plan);
  // Not in a user namespace of its own: to its worker's it would be a stranger.
  if (unshare(kNamespaces) == 0) mount(nullptr, "/", nullptr, kMakePrivate, nullptr);
  KeepFewCapabilities();
  if (user != 0 &&
      (syscall(SYS_setgroups, device_group != 0 ? 1 : 0, &device_group) != 0 ||
       syscall(SYS_setresgid, user, user, user) != 0 || syscall(SYS_setresuid, user, user, user) != 0))
    _exit(kExecFailed);
  Execute(plan);
}

}  // namespace causeway::launcher
