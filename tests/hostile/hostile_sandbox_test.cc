// SPDX-License-Identifier: Apache-2.0
// What a taken worker can do: each attack of attacks.def from inside of a real worker, and the filter that is
// installed in one, read back from the kernel.
#include <elf.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include "host_backend/sandbox/filter.h"
#include "host_backend/sandbox/profile.h"
#include "tests/hostile/attacks.h"
#include "tests/hostile/hostile_guest.h"

namespace causeway::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // workers have no filter then
#else
constexpr bool kSanitized = false;
#endif

// Of configurations that do not name others.
constexpr uint32_t kFirstUser = 2'000'000'000, kUsers = 65'536;

enum class Outcome { Ends, Refused, Works };
struct NamedAttack {
  const char* name;
  Outcome outcome;
};
constexpr NamedAttack kAttacks[] = {
#define ATTACK(name, outcome) {#name, Outcome::outcome},
#include "tests/hostile/attacks.def"
};

class Bait {
 public:
  Bait() {
    const int file = open(kBait, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    fchmod(file, 0666);
    close(file);
  }
  ~Bait() { unlink(kBait); }
};

// CAUSEWAY_TEST_DRIVER for as long as it lives.
class ChosenDriver {
 public:
  explicit ChosenDriver(const std::string& path) { setenv("CAUSEWAY_TEST_DRIVER", path.c_str(), 1); }
  ~ChosenDriver() { unsetenv("CAUSEWAY_TEST_DRIVER"); }
};

// What each taken worker is asked to do, as its guest's next allocation.
Answer Attack(HostileGuest& guest, uint64_t bytes) {
  const auto* which = reinterpret_cast<const std::byte*>(&bytes);
  return guest.Call(Op::cuMemAlloc_v2, Bytes(which, which + sizeof bytes));
}

// Its configuration and log lie in /tmp; anybody may read this file on the host.
constexpr char kReadable[] = "/etc/hostname";

std::string VmOf(const std::string& more = "") {
  return std::string("[[vm]]\nname = \"attacked\"\nregion_file = \"") + kVmRegion + "\"\nregion_mib = 64\n" +
         more;
}

class TakenWorker : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "workers of sanitized builds have no filter";
    if (geteuid() != 0) GTEST_SKIP() << "own users need root";
    if (getenv("CAUSEWAY_TEST_DRIVER") != nullptr) GTEST_SKIP() << "the attacker stands in for the driver";
    unlink(kVmRegion);
    driver_ = std::make_unique<ChosenDriver>(BuildFolder() + "/software_gpu/libattacker.so");
  }
  void TearDown() override { unlink(kVmRegion); }
  // Of a local process, or of a VM's.
  static bool Open(HostileGuest& guest, bool vm) { return vm ? guest.OpenVm(kVmRegion) : guest.Open(); }

  std::unique_ptr<ChosenDriver> driver_;
};

class Attacks : public TakenWorker, public ::testing::WithParamInterface<bool> {};

TEST_P(Attacks, ATakenWorkerGainsNothing) {
  const Bait bait;
  const HostileDaemonOptions options{.more = VmOf(),
                                     .environment = {{"SOFTWARE_GPU_ATTACKED_FILE", kReadable}}};
  std::unique_ptr<HostileDaemon> own;
  for (size_t i = 0; i < std::size(kAttacks); ++i) {
    const NamedAttack& attack = kAttacks[i];
    SCOPED_TRACE(attack.name);
    // A daemon logs few lines a second of one scope, and each end is looked for in the log.
    constexpr size_t kOfOneDaemon = 3;
    if (i % kOfOneDaemon == 0) {
      own.reset();
      own = std::make_unique<HostileDaemon>(options);
    }
    HostileDaemon& daemon = *own;
    HostileGuest guest(daemon);
    ASSERT_TRUE(Open(guest, GetParam())) << guest.refusal();
    guest.RetainPrimary();
    // The first slice stays its own; all others are nobody's.
    for (uint64_t granule = guest.first_slice() / kGranuleBytes + 1;
         granule * kGranuleBytes < guest.region_bytes(); ++granule)
      guest.owners()[granule] = kOwnerFree;
    const Answer answer = Attack(guest, kAttackBytes + i);
    if (attack.outcome == Outcome::Ends) {
      EXPECT_TRUE(answer.lost) << "the worker lives; result " << answer.result;
      EXPECT_EQ(EndOf(daemon, guest.worker()),
                "was killed by its sandbox at a forbidden system call, which the kernel's log names");
    } else if (attack.outcome == Outcome::Works) {
      EXPECT_EQ(answer.result, uint32_t(CUDA_SUCCESS)) << (answer.lost ? EndOf(daemon, guest.worker()) : "");
    } else {
      EXPECT_FALSE(answer.lost) << EndOf(daemon, guest.worker());
      EXPECT_EQ(answer.result, uint32_t(CUDA_ERROR_NOT_PERMITTED)) << (answer.result == 0 ? "it worked" : "");
    }
    std::printf("%-34s %s\n", attack.name,
                answer.lost          ? "ended by the kernel"
                : answer.result == 0 ? "worked"
                                     : "refused");
  }
  EXPECT_TRUE(own->Serves());
}

INSTANTIATE_TEST_SUITE_P(HostileSandbox, Attacks, ::testing::Bool(),
                         [](const auto& kind) { return kind.param ? "OfAVm" : "OfALocalProcess"; });

// A /dev and a /proc/driver of this process and its children alone, with two GPUs. Empty devices stand in for
// their nodes.
bool ShowTwoGpus(const char* first, const char* second) {
  namespace fs = std::filesystem;
  if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return false;
  char before[] = "/tmp/causeway-dev-XXXXXX";
  if (mkdtemp(before) == nullptr || mount("/dev", before, nullptr, MS_BIND | MS_REC, nullptr) != 0 ||
      mount("tmpfs", "/dev", "tmpfs", 0, nullptr) != 0 ||
      mount("tmpfs", "/proc/driver", "tmpfs", 0, nullptr) != 0)
    return false;
  for (const char* node : {"null", "zero", "random", "urandom", "tty", "ptmx"}) {
    const std::string to = std::string("/dev/") + node, from = std::string(before) + "/" + node;
    std::ofstream(to).close();
    if (mount(from.c_str(), to.c_str(), nullptr, MS_BIND, nullptr) != 0) return false;
  }
  fs::create_directory("/dev/shm");
  if (mount((std::string(before) + "/shm").c_str(), "/dev/shm", nullptr, MS_BIND, nullptr) != 0) return false;
  umount2(before, MNT_DETACH);
  rmdir(before);
  for (const auto& [number, uuid] : {std::pair(0, first), std::pair(1, second)}) {
    const std::string node = "/dev/nvidia" + std::to_string(number);
    if (mknod(node.c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0 || chmod(node.c_str(), 0666) != 0)
      return false;
    const std::string place = "/proc/driver/nvidia/gpus/0000:0" + std::to_string(number) + ":00.0";
    fs::create_directories(place);
    std::ofstream(place + "/information") << "Model: \t\t NVIDIA\nIRQ:   \t\t 11\nGPU UUID: \t " << uuid
                                          << "\nVideo BIOS: \t 1\nDevice Minor: \t " << number << "\n";
  }
  return true;
}

TEST_F(TakenWorker, OpensTheNodesOfItsGpusAlone) {
  // The software GPU's.
  const char* first = "GPU-63617573-6577-6179-2d73-776770750000";
  const char* second = "GPU-63617573-6577-6179-2d73-776770750001";
  if (!ShowTwoGpus(first, second)) GTEST_SKIP() << "no mounts of its own: " << strerror(errno);
  HostileDaemon daemon({.more = VmOf(std::string("gpus = [\"") + second + "\"]\n"),
                        .environment = {{"SOFTWARE_GPU_DEVICES", "2"}}});
  for (const bool vm : {false, true}) {
    HostileGuest guest(daemon);
    ASSERT_TRUE(Open(guest, vm)) << guest.refusal();
    guest.RetainPrimary();
    // The first is another's for the VM. A local user has all, so that the node can be opened as such.
    EXPECT_EQ(Attack(guest, kNodeBytes + 0).result, uint32_t(vm ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS));
    EXPECT_EQ(Attack(guest, kNodeBytes + 1).result, uint32_t(CUDA_SUCCESS));
    EXPECT_EQ(Attack(guest, kNodeBytes + 2).result, uint32_t(CUDA_ERROR_NOT_PERMITTED)) << "there is none";
  }
}

// From here on this process and all that it starts are told that the kernel has no Landlock.
void HideLandlock() {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_landlock_create_ruleset, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{std::size(code), code};
  ASSERT_EQ(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program), 0) << strerror(errno);
}

// What an older kernel leaves of the sandbox.
void AttackWithoutLandlock() {
  HideLandlock();
  const Bait bait;
  HostileDaemon daemon({.environment = {{"SOFTWARE_GPU_ATTACKED_FILE", kReadable}}});
  // What users, namespaces and the filter hold by themselves.
  const std::set<std::string> held = {"OpenAFileOfSharedMemory",
                                      "OpenPhysicalMemory",
                                      "ReadTheDaemonsMemory",
                                      "HasCapabilities",
                                      "Fork",
                                      "OpenASocket"};
  size_t made = 0;
  for (size_t i = 0; i < std::size(kAttacks); ++i) {
    if (!held.contains(kAttacks[i].name)) continue;
    SCOPED_TRACE(kAttacks[i].name);
    HostileGuest guest(daemon);
    ASSERT_TRUE(guest.Open()) << guest.refusal();
    guest.RetainPrimary();
    const Answer answer = Attack(guest, kAttackBytes + i);
    EXPECT_EQ(answer.lost, kAttacks[i].outcome == Outcome::Ends);
    if (!answer.lost) {
      EXPECT_EQ(answer.result, uint32_t(CUDA_ERROR_NOT_PERMITTED));
    }
    ++made;
  }
  EXPECT_EQ(made, held.size());
  EXPECT_EQ(daemon.CountInLog("this kernel has no Landlock"), 1u) << daemon.Log();
}

TEST_F(TakenWorker, WithoutLandlockTheRestHoldsAndItIsSaidOnce) {
  const pid_t child = fork();  // the filter cannot be taken back
  if (child == 0) {
    AttackWithoutLandlock();
    fflush(stdout);
    _exit(HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Workers of CUDA and of NVML: users, capabilities and the filter of each thread, and the namespaces.
TEST(HostileSandbox, WorkersOfBothKindsAreConfined) {
  if (kSanitized) GTEST_SKIP() << "workers of sanitized builds have no filter";
  if (geteuid() != 0) GTEST_SKIP() << "own users need root";
  if (!OnSoftwareGpu()) GTEST_SKIP() << "NVIDIA's NVML is beside no library that a test chooses";
  HostileDaemon daemon;
  for (const SessionKind kind : {SessionKind::kCuda, SessionKind::kManagement}) {
    SCOPED_TRACE(kind == SessionKind::kCuda ? "CUDA" : "NVML");
    HostileGuest guest(daemon);
    HostileGuest::Options options;
    options.edit = [&](OpenBlock& block) { block.kind = kind; };
    options.agree = false;
    ASSERT_TRUE(guest.Open(options)) << guest.refusal();
    // From then on it looks at what the guest sends.
    const auto& control = *reinterpret_cast<HostControl*>(guest.base() + SlotOffset(0) + kHostControlOffset);
    ASSERT_TRUE(WaitFor([&] { return LoadAcquire(control.ready) == 1; }));
    const std::string proc = "/proc/" + std::to_string(guest.worker().pid());
    size_t threads = 0;
    for (const auto& task : std::filesystem::directory_iterator(proc + "/task")) {
      std::ifstream file(task.path() / "status");
      const std::string status{std::istreambuf_iterator<char>(file), {}};
      for (const char* line :
           {"CapInh:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n",
            "CapAmb:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"})
        EXPECT_NE(status.find(line), std::string::npos) << line << status;
      unsigned users[4] = {};
      sscanf(status.c_str() + status.find("\nUid:"), "\nUid: %u %u %u %u", &users[0], &users[1], &users[2],
             &users[3]);
      for (const unsigned user : users) EXPECT_TRUE(user >= kFirstUser && user < kFirstUser + kUsers) << user;
      ++threads;
    }
    EXPECT_GT(threads, 0u);
    for (const char* space : {"net", "ipc", "uts", "mnt"}) {
      const std::string link = std::string("/ns/") + space;
      EXPECT_NE(std::filesystem::read_symlink(proc + link),
                std::filesystem::read_symlink("/proc/self" + link))
          << space;
    }
  }
}

// A filter of one thread, as the kernel runs it.
class InstalledFilter {
 public:
  // Of the thread, which must be stopped by this tracer; the first that it got is number 0.
  explicit InstalledFilter(pid_t thread, int number) {
    const auto which = reinterpret_cast<void*>(intptr_t{number});
    const long count = ptrace(PTRACE_SECCOMP_GET_FILTER, thread, which, nullptr);
    if (count <= 0) return;
    program_.resize(size_t(count));
    if (ptrace(PTRACE_SECCOMP_GET_FILTER, thread, which, program_.data()) != count) program_.clear();
  }
  bool Known() const { return !program_.empty(); }
  size_t size() const { return program_.size(); }

  // What seccomp does with that call. Of the machine's language what seccomp allows is used.
  uint32_t Run(const seccomp_data& data) const {
    uint32_t a = 0, x = 0, memory[BPF_MEMWORDS] = {};
    for (size_t at = 0; at < program_.size(); ++at) {
      const sock_filter& code = program_[at];
      const uint32_t operand = (code.code & BPF_X) != 0 ? x : code.k;
      switch (code.code) {
        case BPF_LD | BPF_W | BPF_ABS:
          std::memcpy(&a, reinterpret_cast<const char*>(&data) + code.k, sizeof a);
          break;
        case BPF_LD | BPF_MEM:
          a = memory[code.k];
          break;
        case BPF_ST:
          memory[code.k] = a;
          break;
        case BPF_MISC | BPF_TAX:
          x = a;
          break;
        case BPF_MISC | BPF_TXA:
          a = x;
          break;
        case BPF_ALU | BPF_AND | BPF_K:
          a &= operand;
          break;
        case BPF_JMP | BPF_JA:
          at += code.k;
          break;
        case BPF_JMP | BPF_JEQ | BPF_K:
          at += a == operand ? code.jt : code.jf;
          break;
        case BPF_JMP | BPF_JGT | BPF_K:
          at += a > operand ? code.jt : code.jf;
          break;
        case BPF_JMP | BPF_JGE | BPF_K:
          at += a >= operand ? code.jt : code.jf;
          break;
        case BPF_JMP | BPF_JSET | BPF_K:
          at += (a & operand) != 0 ? code.jt : code.jf;
          break;
        case BPF_RET | BPF_K:
          return code.k;
        case BPF_RET | BPF_A:
          return a;
        default:
          ADD_FAILURE() << "instruction " << code.code << " is not known here";
          return 0;
      }
    }
    return SECCOMP_RET_KILL_PROCESS;
  }

 private:
  std::vector<sock_filter> program_;
};

constexpr uint32_t kX86_64 = 0xc000003e;  // AUDIT_ARCH_X86_64

seccomp_data Call(int number, int argument = 0, uint64_t value = 0) {
  seccomp_data data{};
  data.nr = number;
  data.arch = kX86_64;
  data.args[argument] = value;
  return data;
}

// The one that the launcher and all that it starts have, before the driver comes.
void ExpectTheLaunchers(const InstalledFilter& inherited) {
  ASSERT_TRUE(inherited.Known());
  constexpr uint32_t kRefused = SECCOMP_RET_ERRNO | EPERM;
  for (const int number :
       {SYS_ptrace, SYS_bpf, SYS_setns, SYS_finit_module, SYS_setuid, SYS_setfsuid, SYS_mknod})
    EXPECT_EQ(inherited.Run(Call(number)), kRefused) << sandbox::NameOfSystemCall(number);
  EXPECT_EQ(inherited.Run(Call(SYS_clone3)) & SECCOMP_RET_ACTION_FULL, SECCOMP_RET_ERRNO);
  for (const int number : {SYS_setresuid, SYS_setresgid}) {
    for (int argument = 0; argument < 3; ++argument) {
      for (const uint32_t id : {1u, 1000u, kFirstUser - 1, kFirstUser + kUsers, ~0u})
        EXPECT_EQ(inherited.Run(Call(number, argument, id)), kRefused) << id;
      for (const uint32_t id : {0u, kFirstUser, kFirstUser + kUsers - 1})
        EXPECT_EQ(inherited.Run(Call(number, argument, id)), SECCOMP_RET_ALLOW) << id;
    }
  }
  EXPECT_EQ(inherited.Run(Call(SYS_unshare, 0, CLONE_NEWUSER)), kRefused);
  EXPECT_EQ(inherited.Run(Call(SYS_unshare, 0, CLONE_NEWPID)), kRefused);
  EXPECT_EQ(inherited.Run(Call(SYS_clone, 0, CLONE_NEWUSER)), kRefused);
  EXPECT_EQ(inherited.Run(Call(SYS_clone, 0, SIGCHLD)), SECCOMP_RET_ALLOW);
  EXPECT_EQ(inherited.Run(Call(SYS_mount, 3, 0)), kRefused);
  EXPECT_EQ(inherited.Run(Call(SYS_personality, 0, 0)), kRefused);
  EXPECT_EQ(inherited.Run(Call(SYS_openat)), SECCOMP_RET_ALLOW);
}

TEST(HostileSandbox, TheFilterThatIsInstalledIsTheProfile) {
  if (kSanitized) GTEST_SKIP() << "workers of sanitized builds have no filter";
  if (geteuid() != 0) GTEST_SKIP() << "reading a filter back needs root";
  if (!OnSoftwareGpu()) GTEST_SKIP() << "compares with the software GPU's profile";
  HostileDaemon daemon;
  HostileGuest guest(daemon);
  ASSERT_TRUE(guest.Open()) << guest.refusal();
  guest.RetainPrimary();
  const pid_t worker = guest.worker().pid();
  ASSERT_EQ(ptrace(PTRACE_SEIZE, worker, 0, 0), 0) << strerror(errno);
  ASSERT_EQ(ptrace(PTRACE_INTERRUPT, worker, 0, 0), 0);
  int status = 0;
  ASSERT_EQ(waitpid(worker, &status, __WALL), worker);
  const InstalledFilter filter(worker, 1);
  const int problem = errno;
  const InstalledFilter inherited(worker, 0);
  ptrace(PTRACE_DETACH, worker, 0, 0);
  if (!filter.Known() && (problem == EIO || problem == EINVAL || problem == EOPNOTSUPP))
    GTEST_SKIP() << "this kernel does not show filters";
  ASSERT_TRUE(filter.Known()) << strerror(problem);

  const sandbox::Profile software = sandbox::ChooseProfile({"software", ""}, sandbox::Kind::kCuda).profile;
  std::set<int> allowed;
  for (const auto* profile : {sandbox::BaseProfile(), &software}) {
    for (const auto& call : profile->calls) allowed.insert(call.call->number);
  }
  ASSERT_GT(allowed.size(), 40u);
  std::set<std::string> kept;
  for (int number = 0; number <= 470; ++number) {
    if (allowed.contains(number)) continue;
    for (const uint64_t value :
         {uint64_t{0}, uint64_t{1}, uint64_t{3}, ~uint64_t{0}, uint64_t{0x100000000}}) {
      for (int argument = 0; argument < 6; ++argument) {
        const uint32_t action = filter.Run(Call(number, argument, value));
        if ((action & SECCOMP_RET_ACTION_FULL) == SECCOMP_RET_ERRNO) {
          kept.insert(sandbox::NameOfSystemCall(number));
        } else {
          EXPECT_EQ(action, SECCOMP_RET_KILL_PROCESS) << sandbox::NameOfSystemCall(number);
        }
      }
    }
  }
  EXPECT_EQ(kept, (std::set<std::string>{"clone3", "mremap", "symlink"}));
  // Arguments: what the profiles state passes, its neighbours do not, and no call takes the region's
  // descriptor.
  for (const int number : allowed) {
    const sandbox::SystemCall* call = sandbox::FindSystemCall(number);
    seccomp_data data = Call(number);
    for (int argument = 0; argument < 6; ++argument) {
      if ((call->descriptors >> argument & 1) == 0) continue;
      data.args[argument] = sandbox::kRegionDescriptor;
      EXPECT_EQ(filter.Run(data), SECCOMP_RET_KILL_PROCESS) << call->name;
      data.args[argument] |= uint64_t{1} << 32;
      EXPECT_EQ(filter.Run(data), SECCOMP_RET_KILL_PROCESS) << call->name;
      data.args[argument] = 3;
    }
    if (call->judged == sandbox::kNoArgument) continue;
    data.args[call->judged] = 0xdead;
    EXPECT_EQ(filter.Run(data), SECCOMP_RET_KILL_PROCESS) << call->name;
  }
  seccomp_data mapping = Call(9);
  mapping.args[2] = 3;
  mapping.args[4] = sandbox::kRegionDescriptor;
  EXPECT_EQ(filter.Run(mapping), SECCOMP_RET_USER_NOTIF);
  mapping.args[2] = 7;
  EXPECT_EQ(filter.Run(mapping), SECCOMP_RET_KILL_PROCESS);
  seccomp_data other = Call(39);  // getpid
  EXPECT_EQ(filter.Run(other), SECCOMP_RET_ALLOW);
  other.arch = 0x40000003;  // AUDIT_ARCH_I386
  EXPECT_EQ(filter.Run(other), SECCOMP_RET_KILL_PROCESS);
  std::printf("%zu instructions, %zu calls\n", filter.size(), allowed.size());
  ExpectTheLaunchers(inherited);
}

}  // namespace
}  // namespace causeway::test
