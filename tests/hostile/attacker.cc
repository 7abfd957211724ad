// SPDX-License-Identifier: Apache-2.0
// A driver library whose worker is taken: the software GPU, but an allocation of a certain size runs an
// attack (attacks.def) inside of the worker. Its result says how that went: CUDA_SUCCESS if it worked,
// CUDA_ERROR_NOT_PERMITTED if it was refused; or the worker is no more.
#include <cuda.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "host_backend/common/worker_control.h"
#include "host_backend/launcher/worker_child.h"
#include "host_backend/sandbox/filter.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/packet.h"
#include "tests/hostile/attacks.h"

namespace {

using causeway::kGranuleBytes;
constexpr int kRegion = causeway::sandbox::kRegionDescriptor;
constexpr int kShared = MAP_SHARED;

// By syscall(), so that nothing but the kernel answers.
template <class... T>
bool Works(long number, T... arguments) {
  return syscall(number, arguments...) >= 0;
}
bool Maps(uint64_t offset, uint64_t bytes, int protection = PROT_READ | PROT_WRITE, uint64_t file = kRegion) {
  return Works(SYS_mmap, nullptr, bytes, protection, kShared, file, offset);
}
bool Opens(const std::string& path, int flags) {
  return Works(SYS_openat, AT_FDCWD, path.c_str(), flags | O_CLOEXEC, 0600);
}

uint64_t RegionBytes() {
  struct stat info {};
  stat(("/proc/self/fd/" + std::to_string(kRegion)).c_str(), &info);
  return uint64_t(info.st_size);
}

// The first mapping that a line of /proc/self/maps with such permissions and offset tells of.
void* FindMapping(const char* permissions, uint64_t offset) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, at = 0, inode = 0;
    char rights[8] = "", device[16] = "";
    if (sscanf(line.c_str(), "%lx-%lx %7s %lx %15s %lu", &begin, &end, rights, &at, device, &inode) == 6 &&
        strcmp(rights, permissions) == 0 && at == offset && inode != 0 && end - begin == kGranuleBytes) {
      return reinterpret_cast<void*>(begin);
    }
  }
  return nullptr;
}

bool MapAnotherSlot() {
  return Maps(2 * kGranuleBytes, kGranuleBytes);
}
bool MapAnUnlentSlice() {
  return Maps(RegionBytes() - kGranuleBytes, kGranuleBytes);
}
bool MapSlicesBesideLentOnes() {
  const uint64_t first = causeway::FirstSliceOffset(causeway::SlotCount(RegionBytes()));
  return Maps(first, RegionBytes() - first);
}
bool MapTheWholeRegion() {
  return Maps(0, RegionBytes());
}
bool MapTheHostsPagesWritable() {
  return Maps(0, kGranuleBytes);
}
bool MakeTheHostsPagesWritable() {
  void* pages = FindMapping("r--s", 0);
  if (pages == nullptr) return true;  // the test is wrong
  return Works(SYS_mprotect, pages, 4096, PROT_READ | PROT_WRITE);
}
bool WriteTheCellsOfOthers() {
  std::ifstream maps("/proc/self/maps");
  bool any = false, written = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("causeway-account") == std::string::npos || line.find("r--s") == std::string::npos)
      continue;
    any = true;
    void* page = reinterpret_cast<void*>(std::stoul(line, nullptr, 16));
    written = written || Works(SYS_mprotect, page, 4096, PROT_READ | PROT_WRITE);
  }
  return !any || written;
}
bool MapTheRegionExecutable() {
  return Maps(0, 4096, PROT_READ | PROT_EXEC);
}
bool MapByAWiderNumber() {
  return Maps(2 * kGranuleBytes, kGranuleBytes, PROT_READ | PROT_WRITE, (uint64_t{1} << 32) | kRegion);
}
bool GrowTheSlot() {
  void* slot = FindMapping("rw-s", kGranuleBytes);
  if (slot == nullptr) return true;
  return Works(SYS_mremap, slot, kGranuleBytes, 8 * kGranuleBytes, MREMAP_MAYMOVE, nullptr);
}
bool CopyTheDescriptor() {
  return Works(SYS_dup, kRegion);
}
bool CopyTheDescriptorByFcntl() {
  return Works(SYS_fcntl, kRegion, F_DUPFD_CLOEXEC, 3);
}
bool ReplaceTheDescriptor() {
  return Works(SYS_dup2, 0, kRegion);
}
bool CloseTheDescriptor() {
  return Works(SYS_close, kRegion);
}
bool CloseARangeOfDescriptors() {
  return Works(SYS_close_range, kRegion, kRegion, 0);
}
bool WriteTheRegion() {
  return Works(SYS_pwrite64, kRegion, "x", 1, 0);
}
bool CutTheRegion() {
  return Works(SYS_ftruncate, kRegion, 0);
}
bool OpenTheRegionAgain() {
  return Opens("/proc/self/fd/" + std::to_string(kRegion), O_RDWR);
}

// The control socket is what answers to getsockopt as one of packets.
int ControlSocket() {
  for (int fd = 3; fd < 1024; ++fd) {
    int type = 0;
    socklen_t bytes = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_SEQPACKET) return fd;
  }
  return -1;
}

// The worker's own thread reads the answers: what counts is that the daemon hands out no token for such a
// thing.
bool SendTheDescriptorAndGetItBack() {
  causeway::SharingRequest request{};
  request.action = causeway::SharingAction::kPut;
  request.kind = causeway::SharedKind::kMemory;
  request.has_descriptor = 1;
  const int descriptor = kRegion;
  const int control = ControlSocket();
  if (!causeway::SendPacket(control, &request, sizeof request, std::span(&descriptor, 1))) return true;
  // Peeked before the other thread takes it: both look until one has it.
  for (int tries = 0; tries < 200'000; ++tries) {
    causeway::SharingReply reply{};
    if (recv(control, &reply, sizeof reply, MSG_PEEK | MSG_DONTWAIT) == ssize_t(sizeof reply))
      return reply.result == causeway::SharingResult::kOk;
  }
  return false;  // the log tells (hostile_sandbox_test.cc)
}

bool OpenAFileOfSharedMemory() {
  return Opens(causeway::test::kBait, O_RDONLY);
}
// By the name that it has on the host.
bool OpenTheVmsRegion() {
  return Opens(causeway::test::kVmRegion, O_RDWR);
}
bool OpenTheConfiguration() {
  return Opens(getenv("SOFTWARE_GPU_ATTACKED_FILE"), O_RDONLY);
}
bool OpenThePasswords() {
  return Opens("/etc/passwd", O_RDONLY);
}
bool ListTheRoot() {
  return Opens("/", O_RDONLY | O_DIRECTORY);
}
bool WriteTheTemporaryFolder() {
  return Opens("/tmp/causeway-attack", O_WRONLY | O_CREAT);
}
bool WriteBesideTheCache() {
  const std::string cache = getenv("CUDA_CACHE_PATH");
  return Opens(cache.substr(0, cache.rfind('/')) + "/attack", O_WRONLY | O_CREAT);
}
bool ListAllCaches() {
  char place[4096];
  const ssize_t bytes = readlink(getenv("CUDA_CACHE_PATH"), place, sizeof place);
  const std::string own(place, bytes > 0 ? size_t(bytes) : 0);
  return Opens(own.substr(0, own.rfind('/')), O_RDONLY | O_DIRECTORY);
}
// As NVIDIA's driver: it makes the folder when it starts, and keeps no kernels if that fails otherwise than
// by EEXIST.
const int kCacheAtStart = mkdir(getenv("CUDA_CACHE_PATH"), 0700) == 0 ? 0 : errno;
bool KeepACompiledKernel() {
  const std::string cache = getenv("CUDA_CACHE_PATH");
  return kCacheAtStart == EEXIST && Opens(cache + "/kernel", O_WRONLY | O_CREAT);
}
bool OpenPhysicalMemory() {
  return Opens("/dev/mem", O_RDWR) || Opens("/dev/kmsg", O_RDONLY);
}
bool OpenTheTerminal() {
  return Opens("/dev/ptmx", O_RDWR) || Opens("/dev/tty", O_RDWR);
}
bool OpenKvm() {
  return Opens("/dev/kvm", O_RDWR);
}
// A confined process is not told.
const uint64_t kMemoryAtStart = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
// With more than the workers' part of it, of which the kernel makes whole pages.
bool FillSharedMemory() {
  constexpr uint64_t kPage = 4096;
  struct statfs room {};
  return syscall(SYS_statfs, "/dev/shm", &room) == 0 &&
         uint64_t(room.f_blocks) * uint64_t(room.f_bsize) >
             kMemoryAtStart / causeway::launcher::kSharedPart + kPage;
}
bool MakeADeviceNode() {
  return Works(SYS_mknod, "/dev/shm/attack", S_IFCHR | 0666, makedev(1, 1));
}

// The daemon says who it is to all that it starts, in the test's environment.
pid_t Daemon() {
  return pid_t(atoi(getenv("SOFTWARE_GPU_DAEMON")));
}
// The parent, without a call that would end the worker before the attack does.
pid_t Launcher() {
  std::ifstream status("/proc/self/status");
  pid_t parent = 0;
  for (std::string line; std::getline(status, line);) {
    if (sscanf(line.c_str(), "PPid: %d", &parent) == 1) break;
  }
  return parent;
}

bool TraceTheDaemon() {
  return Works(SYS_ptrace, PTRACE_ATTACH, Daemon(), 0, 0);
}
bool ReadTheDaemonsMemory() {
  return Opens("/proc/" + std::to_string(Daemon()) + "/mem", O_RDONLY);
}
bool WriteTheDaemonsMemory() {
  char byte = 0;
  iovec here{&byte, 1};
  iovec there{reinterpret_cast<void*>(0x400000), 1};
  return Works(SYS_process_vm_writev, Daemon(), &here, 1, &there, 1, 0);
}
bool SignalTheDaemon() {
  return Works(SYS_kill, Daemon(), SIGTERM);
}
bool SignalAThreadOfTheDaemon() {
  return Works(SYS_tgkill, Daemon(), Daemon(), SIGTERM);
}
bool SignalByQueue() {
  siginfo_t info{};
  info.si_code = SI_QUEUE;
  return Works(SYS_rt_sigqueueinfo, Daemon(), SIGTERM, &info);
}
bool TakeTheDaemonsDescriptor() {
  return Works(SYS_pidfd_open, Daemon(), 0);
}
bool TraceTheLauncher() {
  return Works(SYS_ptrace, PTRACE_ATTACH, Launcher(), 0, 0);
}
bool ReadTheLaunchersMemory() {
  return Opens("/proc/" + std::to_string(Launcher()) + "/mem", O_RDONLY);
}
bool SignalTheLauncher() {
  return Works(SYS_kill, Launcher(), SIGTERM);
}
// The control socket and the guest's are all that it has.
bool HasAnotherSocket() {
  int sockets = 0;
  for (int fd = 0; fd < kRegion; ++fd) {
    int type = 0;
    socklen_t bytes = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0) ++sockets;
  }
  return sockets > 2;
}
bool LimitTheDaemon() {
  const uint64_t none[2] = {1, 1};
  return Works(SYS_prlimit64, Daemon(), 7, none, nullptr);
}
bool ListOtherProcesses() {
  return Opens("/proc", O_RDONLY | O_DIRECTORY);
}
bool Fork() {
  return Works(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
}
bool ForkTheNewWay() {
  clone_args how{};
  how.exit_signal = SIGCHLD;
  return Works(SYS_clone3, &how, sizeof how);
}
bool Execute() {
  const char* const none[] = {nullptr};
  return Works(SYS_execve, "/bin/true", none, none);
}
bool ExecuteADescriptor() {
  const char* const none[] = {nullptr};
  return Works(SYS_execveat, 0, "", none, none, AT_EMPTY_PATH);
}

bool OpenASocket() {
  return Works(SYS_socket, AF_INET, SOCK_STREAM, 0);
}
bool HaveASocketWaitAtItsEnd() {
  const linger wait{1, 3600};
  return Works(SYS_setsockopt, ControlSocket(), SOL_SOCKET, SO_LINGER, &wait, sizeof wait);
}
bool OpenASocketPair() {
  int ends[2];
  return Works(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, ends);
}
bool LoadAModule() {
  return Works(SYS_finit_module, 0, "", 0);
}
bool LoadABpfProgram() {
  bpf_attr attributes{};
  return Works(SYS_bpf, BPF_PROG_LOAD, &attributes, sizeof attributes);
}
bool OpenAPerformanceCounter() {
  return Works(SYS_perf_event_open, nullptr, 0, -1, -1, 0);
}
bool UseIoUring() {
  return Works(SYS_io_uring_setup, 1, nullptr);
}
bool UseUserfaultfd() {
  return Works(SYS_userfaultfd, 0);
}
bool AddAKey() {
  return Works(SYS_add_key, "user", "x", "x", 1, -3);
}
bool Mount() {
  return Works(SYS_mount, "none", "/tmp", "tmpfs", 0, nullptr);
}
bool MakeANamespace() {
  return Works(SYS_unshare, CLONE_NEWUSER);
}
bool EnterANamespace() {
  return Works(SYS_setns, 0, 0);
}
bool BecomeRoot() {
  return Works(SYS_setresuid, 0, 0, 0);
}
bool TakeCapabilities() {
  return Works(SYS_capset, nullptr, nullptr);
}
bool InstallAFilter() {
  return Works(SYS_seccomp, 1, 0, nullptr);
}
bool BecomeReadable() {
  return Works(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0);
}
bool OpenByHandle() {
  return Works(SYS_open_by_handle_at, AT_FDCWD, nullptr, O_RDONLY);
}
bool CallAnUnknownIoctl() {
  return Works(SYS_ioctl, 0, 0x5412, "x");
}  // TIOCSTI
bool MapWritableAndExecutable() {
  return Works(SYS_mmap, nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1,
               0);
}
bool MakeExecutableWhatWasWritten() {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return Works(SYS_mprotect, page, 4096, PROT_READ | PROT_EXEC);
}
bool UseTheOtherInterface() {
  long result = 0;
  asm volatile("syscall" : "=a"(result) : "a"(0x40000000L | SYS_getpid) : "rcx", "r11", "memory");  // x32
  return result >= 0;
}

// Whether a line of any thread's status begins so and does not end so.
bool AnyThreadHas(const std::string& begin, const std::string& end) {
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return true;
  bool found = false;
  while (const dirent* task = readdir(tasks)) {
    if (task->d_name[0] == '.') continue;
    std::ifstream status(std::string("/proc/self/task/") + task->d_name + "/status");
    bool told = false;
    for (std::string line; std::getline(status, line);) {
      if (line.compare(0, begin.size(), begin) != 0) continue;
      told = true;
      found = found || line.substr(line.size() - std::min(line.size(), end.size())) != end;
    }
    found = found || !told;
  }
  closedir(tasks);
  return found;
}
bool HasCapabilities() {
  const std::string none(16, '0');
  return AnyThreadHas("CapEff:", none) || AnyThreadHas("CapPrm:", none) || AnyThreadHas("CapAmb:", none) ||
         AnyThreadHas("NoNewPrivs:", "1");
}
bool IsRoot() {
  return getuid() < 100'000 || geteuid() != getuid() || getgid() != getuid();
}
bool HasAThreadWithoutAFilter() {
  return AnyThreadHas("Seccomp:", "2");
}

using Attack = bool (*)();
constexpr Attack kAttacks[] = {
#define ATTACK(name, outcome) name,
#include "tests/hostile/attacks.def"
};

}  // namespace

extern "C" __attribute__((visibility("default"))) CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  constexpr size_t kCount = sizeof kAttacks / sizeof kAttacks[0];
  if (bytes >= causeway::test::kAttackBytes && bytes - causeway::test::kAttackBytes < kCount)
    return kAttacks[bytes - causeway::test::kAttackBytes]() ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED;
  if (bytes >= causeway::test::kNodeBytes && bytes - causeway::test::kNodeBytes < causeway::test::kNodes) {
    const std::string node = "/dev/nvidia" + std::to_string(bytes - causeway::test::kNodeBytes);
    return Opens(node, O_RDWR) ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED;
  }
  using Function = CUresult (*)(CUdeviceptr*, size_t);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
  return real(address, bytes);
}
