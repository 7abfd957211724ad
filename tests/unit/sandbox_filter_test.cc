// SPDX-License-Identifier: Apache-2.0
// The filter of each profile that is compiled in can be built, as the worker builds it when it starts. (A
// rule for each pair of forms of two descriptors made libseccomp work without end: this test then met its
// limit.)
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/bpf_common.h>
#include <linux/seccomp.h>
#include <linux/types.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xen/gntalloc.h>

#include <cstring>
#include <set>
#include <string_view>

#include "host_backend/sandbox/filter.h"
#include "host_backend/sandbox/profile.h"

using domid_t = unsigned short;  // Linux's header uses it and does not say what it is
#include <xen/evtchn.h>

namespace causeway::sandbox {
namespace {

// How a confined process ends that asks this of a descriptor: the signal, or 0 if it goes on.
int SignalAfter(int descriptor, unsigned long request, const char* driver = "") {
  const auto profile = ParseProfile("none", driver);
  const pid_t child = fork();
  if (child == 0) {
    FilterOptions options;
    options.process = getpid();
    options.region_is_asked = false;
    const auto program = BuildFilter(profile.value(), options);
    const int null = open("/dev/null", O_RDWR);
    if (!program.ok() || dup2(null, kRegionDescriptor) < 0 || dup2(null, 9) < 0 ||
        !InstallFilter(program.value(), false, nullptr).empty())
      _exit(1);
    ioctl(descriptor, request, nullptr);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return WTERMSIG(status);
  return WEXITSTATUS(status) == 0 ? 0 : -1;
}

// What the filter says of a control request, and in how many instructions.
struct Verdict {
  uint32_t action = 0;
  int steps = 0;
};
Verdict OfRequest(const Program& program, uint64_t descriptor, uint64_t request) {
  seccomp_data data{};
  data.nr = SYS_ioctl;
  data.arch = AUDIT_ARCH_X86_64;
  data.args[0] = descriptor;
  data.args[1] = request;
  Verdict verdict;
  uint32_t accumulator = 0;
  for (size_t i = 0; i < program.size(); ++i) {
    const sock_filter& each = program[i];
    ++verdict.steps;
    const auto jump = [&](bool taken) { i += taken ? each.jt : each.jf; };
    switch (each.code) {
      case BPF_LD | BPF_W | BPF_ABS:
        std::memcpy(&accumulator, reinterpret_cast<const char*>(&data) + each.k, sizeof accumulator);
        break;
      case BPF_ALU | BPF_AND | BPF_K:
        accumulator &= each.k;
        break;
      case BPF_JMP | BPF_JA:
        i += each.k;
        break;
      case BPF_JMP | BPF_JEQ | BPF_K:
        jump(accumulator == each.k);
        break;
      case BPF_JMP | BPF_JGT | BPF_K:
        jump(accumulator > each.k);
        break;
      case BPF_JMP | BPF_JGE | BPF_K:
        jump(accumulator >= each.k);
        break;
      case BPF_RET | BPF_K:
        verdict.action = each.k;
        return verdict;
      default:
        ADD_FAILURE() << "an instruction that this test does not know: " << each.code;
        return verdict;
    }
  }
  ADD_FAILURE() << "the program does not return";
  return verdict;
}

// Each request of a profile passes on every descriptor but the region's and those above, in few instructions; its neighbours do not.
TEST(SandboxFilter, RequestsAreFoundInFewInstructions) {
  constexpr int kMostSteps = 24;
  for (unsigned i = 0; i < kProfileCount; ++i) {
    const auto profile = ParseProfile(kProfiles[i].name, kProfiles[i].text);
    ASSERT_TRUE(profile.ok()) << profile.error();
    FilterOptions options;
    options.process = getpid();
    const auto program = BuildFilter(profile.value(), options);
    ASSERT_TRUE(program.ok()) << program.error();
    std::set<uint32_t> requests;
    for (const AllowedCall& each : profile.value().calls) {
      if (each.call->number == SYS_ioctl) requests.insert(each.value.value());
    }
    for (const AllowedCall& each : BaseProfile()->calls) {
      if (each.call->number == SYS_ioctl) requests.insert(each.value.value());
    }
    for (const uint32_t request : requests) {
      // Also on what is none, which the kernel answers.
      for (const uint64_t descriptor : {0, 8, kRegionDescriptor - 1, -1, AT_FDCWD}) {
        const Verdict verdict = OfRequest(program.value(), descriptor, request);
        EXPECT_EQ(verdict.action, uint32_t{SECCOMP_RET_ALLOW}) << kProfiles[i].name << " " << request;
        EXPECT_LE(verdict.steps, kMostSteps) << kProfiles[i].name << " " << request;
      }
      for (const uint64_t descriptor :
           {uint64_t{kRegionDescriptor}, uint64_t{kRegionDescriptor} + 1, uint64_t{1} << 32})
        EXPECT_NE(OfRequest(program.value(), descriptor, request).action, uint32_t{SECCOMP_RET_ALLOW})
            << kProfiles[i].name << " " << request;
      for (const uint32_t other : {request - 1, request + 1}) {
        if (requests.contains(other)) continue;
        EXPECT_NE(OfRequest(program.value(), 8, other).action, uint32_t{SECCOMP_RET_ALLOW})
            << kProfiles[i].name << " " << other;
      }
    }
  }
}

TEST(SandboxFilter, EveryProfileMakesAProgramThatTheKernelTakes) {
  ASSERT_GT(kProfileCount, 0u);
  for (unsigned i = 0; i < kProfileCount; ++i) {
    const auto profile = ParseProfile(kProfiles[i].name, kProfiles[i].text);
    ASSERT_TRUE(profile.ok()) << profile.error();
    for (const Mode mode : {Mode::kEnforce, Mode::kReport, Mode::kLearn}) {
      FilterOptions options;
      options.mode = mode;
      options.process = getpid();
      const auto program = BuildFilter(profile.value(), options);
      ASSERT_TRUE(program.ok()) << kProfiles[i].name << ": " << program.error();
      EXPECT_GT(program.value().size(), 10u) << kProfiles[i].name;
      EXPECT_LE(program.value().size(), size_t{BPF_MAXINSNS}) << kProfiles[i].name;
    }
  }
}

// A driver of a version that has no profile gets the nearest one's, in its own branch if there is any, and never none.
TEST(SandboxFilter, AnUnknownVersionGetsTheNearestProfile) {
  constexpr ProfileText kSome[] = {{"worker", "read\n"},
                                   {"nvidia-cuda-570.10.01", "read\n"},
                                   {"nvidia-cuda-570.99.02", "read\n"},
                                   {"nvidia-cuda-580.10.01", "read\n"},
                                   {"nvidia-nvml-575.01.01", "read\n"},
                                   {"software-cuda", "read\n"}};
  const auto choose = [&](const char* version) {
    const ChosenProfile chosen = ChooseProfile({"nvidia", version}, Kind::kCuda, kSome);
    EXPECT_EQ(chosen.profile.calls.size(), 1u);
    return chosen.profile.name + (chosen.exact ? ", exactly" : "");
  };
  EXPECT_EQ(choose("570.99.02"), "nvidia-cuda-570.99.02, exactly");
  EXPECT_EQ(choose("570.99.03"), "nvidia-cuda-570.99.02");
  EXPECT_EQ(choose("570.12"), "nvidia-cuda-570.10.01");
  EXPECT_EQ(choose("580.99.02"), "nvidia-cuda-580.10.01") << "nearer than another branch's";
  EXPECT_EQ(choose("9999.0.0"), "nvidia-cuda-580.10.01");
  EXPECT_EQ(choose(""), "nvidia-cuda-570.10.01") << "the version is not known";
  EXPECT_EQ(ChooseProfile({"nvidia", "580.10.01"}, Kind::kManagement, kSome).profile.name,
            "nvidia-nvml-575.01.01");
  // Of those that are compiled in.
  for (const Kind kind : {Kind::kCuda, Kind::kManagement}) {
    for (const char* version : {"", "1.0", "535.104.05", "9999.0"}) {
      const ChosenProfile chosen = ChooseProfile({"nvidia", version}, kind);
      EXPECT_FALSE(chosen.exact) << version;
      EXPECT_GT(chosen.profile.calls.size(), 10u) << version;
    }
    EXPECT_TRUE(ChooseProfile({"software", ""}, kind).exact);
  }
}

// What Xen's devices could do for a worker that was taken over: nothing but to ring its own guest.
TEST(SandboxFilter, AWorkerGrantsNoPagesAndBindsNoEventChannel) {
  constexpr int kOther = 9;
  EXPECT_EQ(SignalAfter(kOther, IOCTL_EVTCHN_NOTIFY), 0);
  EXPECT_EQ(SignalAfter(kRegionDescriptor, IOCTL_EVTCHN_NOTIFY), SIGSYS);
  for (const unsigned long request : std::initializer_list<unsigned long>{
           IOCTL_GNTALLOC_ALLOC_GREF, IOCTL_GNTALLOC_DEALLOC_GREF, IOCTL_GNTALLOC_SET_UNMAP_NOTIFY,
           IOCTL_EVTCHN_BIND_VIRQ, IOCTL_EVTCHN_BIND_INTERDOMAIN, IOCTL_EVTCHN_BIND_UNBOUND_PORT,
           IOCTL_EVTCHN_UNBIND, IOCTL_EVTCHN_RESET}) {
    EXPECT_EQ(SignalAfter(kRegionDescriptor, request), SIGSYS) << request;
    EXPECT_EQ(SignalAfter(kOther, request), SIGSYS) << request;
  }
}

// Time slices are set by the one request of NVIDIA's driver that every control is made by, which passes with its profile alone:
// no filter sees which control it is. Nothing else that a channel group knows passes.
TEST(SandboxFilter, TimeSlicesNeedNoOtherRequestThanTheDriver) {
  constexpr int kOther = 9;
  constexpr unsigned long kControl = 0xc020462a;  // _IOWR('F', 0x2a, 32 bytes)
  const char* nvidia = nullptr;
  for (unsigned i = 0; i < kProfileCount; ++i) {
    if (std::string_view(kProfiles[i].name).starts_with("nvidia-cuda")) nvidia = kProfiles[i].text;
  }
  ASSERT_NE(nvidia, nullptr);
  EXPECT_EQ(SignalAfter(kOther, kControl, nvidia), 0);
  EXPECT_EQ(SignalAfter(kRegionDescriptor, kControl, nvidia), SIGSYS);
  EXPECT_EQ(SignalAfter(kOther, kControl), SIGSYS) << "of another driver";
  for (const unsigned long request : {0xc018462aul, 0xc028462aul, 0xc020462cul, 0x4020462aul, 0xa06c0103ul})
    EXPECT_EQ(SignalAfter(kOther, request, nvidia), SIGSYS) << std::hex << request;
}

// Calls with two descriptors among the rest, in any company.
TEST(SandboxFilter, CallsWithTwoDescriptorsDoNotMakeItGrow) {
  std::string text;
  for (int request = 0; request < 64; ++request) text += "fcntl " + std::to_string(request) + "\n";
  text += "dup2\ndup3\nepoll_ctl\nrenameat\nrenameat2\n";
  const auto profile = ParseProfile("two", text);
  ASSERT_TRUE(profile.ok()) << profile.error();
  FilterOptions options;
  options.process = getpid();
  const auto program = BuildFilter(profile.value(), options);
  ASSERT_TRUE(program.ok()) << program.error();
  EXPECT_LE(program.value().size(), size_t{BPF_MAXINSNS});
}

}  // namespace
}  // namespace causeway::sandbox
