// SPDX-License-Identifier: Apache-2.0
#include "host_backend/launcher/acts.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host_backend/launcher/cache_folder.h"
#include "host_backend/launcher/protocol.h"
#include "host_backend/launcher/vm_search.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::launcher {
namespace {

// In a process of its own: `work` may only do what is safe after fork.
template <class Work>
pid_t InChild(const Work& work) {
  const pid_t self = getpid();
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() == self) work();
  _exit(0);
}

class System final : public Acts {
 public:
  pid_t StartWorker(const ChildPlan& plan) override {
    const pid_t pid = fork();
    if (pid == 0) BecomeWorker(plan);
    return pid;
  }
  pid_t StartCheckpointer(const ChildPlan& plan, uid_t user, gid_t device_group) override {
    const pid_t pid = fork();
    if (pid == 0) BecomeCheckpointer(plan, user, device_group);
    return pid;
  }
  pid_t FindVm(const struct stat& file, pid_t daemon, int socket) override {
    return InChild([&, launcher = getpid()] {
      VmProcess found{FindMapper(file, launcher, daemon), 0};
      const int descriptor = found.pid != 0 ? OpenProcess(found.pid) : -1;
      if (descriptor < 0) found.pid = 0;
      fcntl(socket, F_SETFL, O_NONBLOCK);
      SendPacket(socket, &found, sizeof found, std::span(&descriptor, descriptor >= 0 ? 1 : 0));
    });
  }
  pid_t HoldCache(int cache, uint32_t user, uint32_t mib, int socket) override {
    return InChild([&] { HoldCacheFolder(cache, user, mib, socket); });
  }
  pid_t ClearCache(int cache, uint32_t user, uint32_t number) override {
    return InChild([&] { EmptyDiscarded(cache, user, number); });
  }
  void Kill(pid_t child) override { kill(child, SIGKILL); }
  bool Runs(pid_t child) override {
    siginfo_t end{};
    return waitid(P_PID, id_t(child), &end, WEXITED | WNOHANG | WNOWAIT) == 0 && end.si_pid == 0;
  }
  pid_t Reap(pid_t child, int* status) override { return waitpid(child, status, WNOHANG); }
  int OpenProcess(pid_t child) override { return int(syscall(SYS_pidfd_open, child, 0)); }
  int Give(int file, uid_t user, gid_t group) override {
    return fchownat(file, "", user, group, AT_EMPTY_PATH) == 0 ? 0 : errno;
  }
  int MakeCache(int cache, uint32_t user) override { return MakeCacheFolder(cache, user); }
};

}  // namespace

Acts& OwnActs() {
  static System system;
  return system;
}

}  // namespace causeway::launcher
