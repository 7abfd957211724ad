// SPDX-License-Identifier: Apache-2.0
#include "host_backend/launcher/filter.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

#include "host_backend/launcher/worker_child.h"

// Newer than the headers of the oldest system that builds this; the numbers are those of all machines.
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443
#endif

namespace causeway::launcher {
namespace {

constexpr long kDenied[] = {
    // Other processes.
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_process_madvise, SYS_kcmp, SYS_pidfd_getfd,
    SYS_setns, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo,
    // Other users than setresuid and setresgid make, which are checked.
    SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setfsuid, SYS_setfsgid,
    // Files beyond names and rights.
    SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_fsconfig,
    SYS_fsmount, SYS_fspick, SYS_mount_setattr, SYS_open_by_handle_at, SYS_name_to_handle_at, SYS_mknod,
    SYS_mknodat, SYS_fanotify_init, SYS_quotactl, SYS_quotactl_fd, SYS_acct, SYS_swapon, SYS_swapoff,
    // The kernel itself.
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_kexec_file_load, SYS_reboot,
    SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_io_uring_setup, SYS_io_uring_enter,
    SYS_io_uring_register, SYS_add_key, SYS_request_key, SYS_keyctl, SYS_syslog, SYS_settimeofday,
    SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime, SYS_sethostname, SYS_setdomainname,
#ifdef __x86_64__
    SYS_iopl, SYS_ioperm, SYS_modify_ldt,
#endif
    SYS_vhangup};

#if defined(__x86_64__)
constexpr uint32_t kMachine = AUDIT_ARCH_X86_64;
constexpr uint32_t kOtherInterface = 0x4000'0000;  // x32
#elif defined(__aarch64__)
constexpr uint32_t kMachine = AUDIT_ARCH_AARCH64;
constexpr uint32_t kOtherInterface = 0x8000'0000;
#endif

constexpr uint32_t kForbidden = SECCOMP_RET_ERRNO | EPERM;

class Program {
 public:
  // Jumps are to `yes` or `no` instructions after the next.
  void Add(uint16_t code, uint32_t k, uint8_t yes = 0, uint8_t no = 0) {
    code_.push_back({code, yes, no, k});
  }
  void Load(size_t offset) { Add(BPF_LD | BPF_W | BPF_ABS, uint32_t(offset)); }
  void LoadArgument(unsigned index, bool upper = false) {
    Load(offsetof(seccomp_data, args) + index * sizeof(uint64_t) + (upper ? sizeof(uint32_t) : 0));
  }
  void Return(uint32_t action) { Add(BPF_RET | BPF_K, action); }
  // What follows until End is for this call alone.
  void Begin(long number) {
    Load(offsetof(seccomp_data, nr));
    Add(BPF_JMP | BPF_JEQ | BPF_K, uint32_t(number), 0, 0);
    open_ = code_.size() - 1;
  }
  void End() { code_[open_].jf = uint8_t(code_.size() - open_ - 1); }
  // The call passes with one of these values of its argument, whose upper half the kernel does not look at.
  void AllowOnly(long number, unsigned argument, const std::vector<uint32_t>& values) {
    Begin(number);
    LoadArgument(argument);
    for (const uint32_t value : values) {
      Add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
      Return(SECCOMP_RET_ALLOW);
    }
    Return(kForbidden);
    End();
  }
  std::vector<sock_filter>& code() { return code_; }

 private:
  std::vector<sock_filter> code_;
  size_t open_ = 0;
};

// Each of the three ids is 0 or in the range.
void CheckIds(Program& program, long number, const UserRange& users) {
  program.Begin(number);
  for (unsigned argument = 0; argument < 3; ++argument) {
    program.LoadArgument(argument);
    program.Add(BPF_JMP | BPF_JEQ | BPF_K, 0, users.count != 0 ? 3 : 1, 0);
    if (users.count != 0) {
      program.Add(BPF_JMP | BPF_JGE | BPF_K, users.first, 0, 1);
      program.Add(BPF_JMP | BPF_JGT | BPF_K, users.first + (users.count - 1), 0, 1);
    }
    program.Return(kForbidden);
  }
  program.Return(SECCOMP_RET_ALLOW);
  program.End();
}

std::vector<sock_filter> Build(const UserRange& users) {
  Program program;
  program.Load(offsetof(seccomp_data, arch));
  program.Add(BPF_JMP | BPF_JEQ | BPF_K, kMachine, 1, 0);
  program.Return(SECCOMP_RET_KILL_PROCESS);
  program.Load(offsetof(seccomp_data, nr));
  program.Add(BPF_JMP | BPF_JGE | BPF_K, kOtherInterface, 0, 1);
  program.Return(SECCOMP_RET_KILL_PROCESS);
  // ioctl comes first, because the filters run for it each time: a worker's own filter looks at its arguments. For calls of which only
  // the number counts the kernel remembers the answer.
  program.Begin(SYS_ioctl);
  program.Return(SECCOMP_RET_ALLOW);
  program.End();
  for (const long number : kDenied) {
    program.Add(BPF_JMP | BPF_JEQ | BPF_K, uint32_t(number), 0, 1);
    program.Return(kForbidden);
  }
  CheckIds(program, SYS_setresuid, users);
  CheckIds(program, SYS_setresgid, users);
  program.AllowOnly(SYS_unshare, 0, {uint32_t(kNamespaces), uint32_t(kNamespaces | CLONE_NEWUSER)});
  program.AllowOnly(SYS_mount, 3, {uint32_t(kMakePrivate), uint32_t(kBind), uint32_t(kBindSafely)});
  program.AllowOnly(SYS_personality, 0, {ADDR_COMPAT_LAYOUT, 0xffffffff});
  // Its flags lie in memory; libc takes clone where this is not there.
  program.Begin(SYS_clone3);
  program.Return(SECCOMP_RET_ERRNO | ENOSYS);
  program.End();
  program.Begin(SYS_clone);
  program.LoadArgument(0);
  program.Add(BPF_JMP | BPF_JSET | BPF_K,
              uint32_t(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC |
                       CLONE_NEWUTS | CLONE_NEWCGROUP),
              0, 1);
  program.Return(kForbidden);
  program.End();
  program.Return(SECCOMP_RET_ALLOW);
  return std::move(program.code());
}

}  // namespace

std::string InstallLauncherFilter(const UserRange& users) {
  std::vector<sock_filter> code = Build(users);
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  // As of the worker's filter: what the mitigation would cost the drivers' threads before 5.16.
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) == 0)
    return {};
  return strerror(errno);
}

}  // namespace causeway::launcher
