// SPDX-License-Identifier: Apache-2.0
#include "host_backend/sandbox/filter.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "host_backend/common/unique_fd.h"

#ifndef SECCOMP_FILTER_FLAG_TSYNC_ESRCH
#define SECCOMP_FILTER_FLAG_TSYNC_ESRCH (1UL << 4)
#endif

namespace causeway::sandbox {
namespace {

using Condition = scmp_arg_cmp;
using Conditions = std::vector<Condition>;

// The kernel looks at the lower half of arguments that are int.
constexpr uint64_t kInt = 0xffff'ffff;
constexpr uint64_t kNoDescriptor = 0xffff'ffff;  // -1: anonymous memory, or a mistake that the kernel answers
constexpr uint64_t kWorkingFolder = 0xffff'ff9c;  // AT_FDCWD

Condition Is(unsigned argument, uint64_t value) {
  return {argument, SCMP_CMP_MASKED_EQ, kInt, value & kInt};
}
Condition Below(unsigned argument, uint64_t value) {
  return {argument, SCMP_CMP_LT, value, 0};
}

// The control requests that the driver may make of its devices. They pass on every descriptor below the region's, which is the
// highest; libseccomp's rules judge the other calls' descriptors likewise. It is a search in 17 instructions, where libseccomp would compare one request after the
// other, 48 to 85 instructions. What is not found goes on to the rules, which have no ioctl.
class RequestSearch {
 public:
  void Add(uint32_t request) { requests_.insert(request); }
  bool Fits() const { return requests_.size() <= kMost; }

  // The instructions that come before the rules.
  Program Build() {
    if (requests_.empty()) return {};
    Load(offsetof(seccomp_data, arch));
    LeaveUnless(AUDIT_ARCH_X86_64);
    Load(offsetof(seccomp_data, nr));
    LeaveUnless(uint32_t(SCMP_SYS(ioctl)));
    PassDescriptor();
    Load(offsetof(seccomp_data, args[1]));
    Search(std::vector<uint32_t>(requests_.begin(), requests_.end()));
    for (const size_t at : leaves_) code_[at].k = uint32_t(code_.size() - at - 1);
    return std::move(code_);
  }

 private:
  static constexpr size_t kMost =
      120;  // a test jumps over half of its search, 239 instructions then, and over 255 at most

  void Load(size_t offset) { code_.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, uint32_t(offset))); }
  void Test(uint16_t test, uint64_t value, uint8_t if_true, uint8_t if_false) {
    code_.push_back(BPF_JUMP(uint16_t(BPF_JMP | test | BPF_K), uint32_t(value), if_true, if_false));
  }
  void Leave() {
    leaves_.push_back(code_.size());
    code_.push_back(BPF_STMT(BPF_JMP | BPF_JA, 0));
  }
  void LeaveUnless(uint32_t value) {
    Test(BPF_JEQ, value, 1, 0);
    Leave();
  }
  // -1 and AT_FDCWD are compared by their lower 32 bits alone; any other descriptor must have a zero upper half.
  void PassDescriptor() {
    constexpr size_t kDescriptor = offsetof(seccomp_data, args[0]);
    Load(kDescriptor);
    Test(BPF_JGE, kRegionDescriptor, 3, 0);
    Load(kDescriptor + sizeof(uint32_t));
    Test(BPF_JEQ, 0, 4, 0);
    Leave();
    Test(BPF_JEQ, kNoDescriptor, 2, 0);
    Test(BPF_JEQ, kWorkingFolder, 1, 0);
    Leave();
  }
  void Search(std::span<const uint32_t> among) {
    if (among.size() == 1) {
      LeaveUnless(among[0]);
      code_.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
      return;
    }
    const size_t half = among.size() / 2, at = code_.size();
    Test(BPF_JGE, among[half], 0, 0);
    Search(among.first(half));
    code_[at].jt = uint8_t(code_.size() - at - 1);
    Search(among.subspan(half));
  }

  std::set<uint32_t> requests_;
  Program code_;
  std::vector<size_t> leaves_;  // jumps to what comes behind
};

class Builder {
 public:
  Builder(const FilterOptions& options, uint32_t otherwise)
      : options_(options), otherwise_(otherwise), context_(seccomp_init(otherwise), &seccomp_release) {
    if (context_ == nullptr) {
      failure_ = ENOMEM;
      return;
    }
    seccomp_attr_set(context_.get(), SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    // Calls are looked up in a tree instead of one after the other.
    seccomp_attr_set(context_.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2);
  }

  void Allow(const AllowedCall& allowed) {
    const SystemCall& call = *allowed.call;
    Conditions conditions;
    switch (call.number) {
      case SCMP_SYS(mmap):
        return AllowMapping(*allowed.value);
      case SCMP_SYS(kill):
      case SCMP_SYS(tgkill):
        return Add(SCMP_ACT_ALLOW, call.number, {Is(0, uint64_t(options_.process))});
      case SCMP_SYS(prlimit64):
        Add(SCMP_ACT_ALLOW, call.number, {Is(0, uint64_t(options_.process))});
        return Add(SCMP_ACT_ALLOW, call.number, {Is(0, 0)});
      case SCMP_SYS(ioctl):
        if (allowed.value) return requests_.Add(*allowed.value);
        break;
      default:
        break;
    }
    if (allowed.value) conditions.push_back(Is(unsigned(call.judged), *allowed.value));
    AllowDescriptors(call, conditions);
  }

  void Refuse(int number, int error) { Add(SCMP_ACT_ERRNO(uint32_t(error)), number, {}); }

  Result<Program> Finish() {
    const UniqueFd file(memfd_create("causeway-filter", MFD_CLOEXEC));
    if (failure_ == 0 && !requests_.Fits()) failure_ = E2BIG;
    if (failure_ == 0) failure_ = -seccomp_export_bpf(context_.get(), file.get());
    if (failure_ != 0) return Error{"The system call filter cannot be built: " + ErrnoText(failure_) + "."};
    const off_t bytes = lseek(file.get(), 0, SEEK_END);
    Program rules(size_t(bytes) / sizeof(sock_filter));
    if (rules.empty() || pread(file.get(), rules.data(), size_t(bytes), 0) != bytes)
      return Error{"The system call filter cannot be read back: " + ErrnoText() + "."};
    Program program = requests_.Build();
    program.insert(program.end(), rules.begin(), rules.end());
    return program;
  }

 private:
  void Add(uint32_t action, int number, const Conditions& conditions) {
    if (failure_ != 0 || action == otherwise_) return;
    const int result = seccomp_rule_add_array(context_.get(), action, number, unsigned(conditions.size()),
                                              conditions.data());
    if (result != 0 && result != -EEXIST) failure_ = -result;
  }

  // Every descriptor but the region's: there is none above it. A call with two of them has one rule for both
  // being descriptors and one for both being the working folder: with a rule for each pair of forms
  // libseccomp 2.5 builds its tree without end.
  void AllowDescriptors(const SystemCall& call, const Conditions& conditions) {
    const auto with = [&](auto condition) {
      Conditions all = conditions;
      for (unsigned argument = 0; argument < 6; ++argument) {
        if ((call.descriptors >> argument & 1) != 0) all.push_back(condition(argument));
      }
      Add(SCMP_ACT_ALLOW, call.number, all);
    };
    with([](unsigned argument) { return Below(argument, kRegionDescriptor); });
    if (call.descriptors == 0) return;
    with([](unsigned argument) { return Is(argument, kWorkingFolder); });
    if (std::has_single_bit(call.descriptors)) {
      with([](unsigned argument) { return Is(argument, kNoDescriptor); });
    }
  }

  void AllowMapping(uint32_t protection) {
    constexpr unsigned kProtection = 2, kDescriptor = 4;
    const auto add = [&](uint32_t action, const Condition& descriptor) {
      Add(action, SCMP_SYS(mmap), {Is(kProtection, protection), descriptor});
    };
    add(SCMP_ACT_ALLOW, Below(kDescriptor, kRegionDescriptor));
    add(SCMP_ACT_ALLOW, Is(kDescriptor, kNoDescriptor));
    if ((protection & ~uint32_t(PROT_READ | PROT_WRITE)) != 0) return;
    add(options_.region_is_asked ? SCMP_ACT_NOTIFY : SCMP_ACT_ALLOW, Is(kDescriptor, kRegionDescriptor));
  }

  const FilterOptions options_;
  const uint32_t otherwise_;
  RequestSearch requests_;
  const std::unique_ptr<void, decltype(&seccomp_release)> context_;
  int failure_ = 0;
};

}  // namespace

Mode ModeOf(const std::string& text) {
  if (text == "report") return Mode::kReport;
  return text == "learn" ? Mode::kLearn : Mode::kEnforce;
}

const char* NameOf(Mode mode) {
  if (mode == Mode::kEnforce) return "enforce";
  return mode == Mode::kReport ? "report" : "learn";
}

Result<Program> BuildFilter(const Profile& driver, const FilterOptions& options) {
  Builder builder(options, options.mode == Mode::kEnforce ? SCMP_ACT_KILL_PROCESS : SCMP_ACT_NOTIFY);
  const Profile* base = BaseProfile();
  for (const AllowedCall& call : base->calls) builder.Allow(call);
  if (options.mode != Mode::kLearn) {
    for (const AllowedCall& call : driver.calls) builder.Allow(call);
  }
  // glibc makes threads by clone where this is not there; its flags lie in memory, where no filter looks.
  builder.Refuse(SCMP_SYS(clone3), ENOSYS);
  // A mapping that grows would reach parts of the region that nobody lent; realloc copies instead.
  builder.Refuse(SCMP_SYS(mremap), ENOMEM);
  // NVIDIA's driver names device nodes in /dev/char when it restores a process, and goes on where it may not.
  builder.Refuse(SCMP_SYS(symlink), EACCES);
  return builder.Finish();
}

bool CanNotify() {
  seccomp_notif_sizes sizes{};
  const uint32_t action = SECCOMP_RET_USER_NOTIF;
  if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) != 0) return false;
  if (syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes) != 0) return false;
  // Unknown flags are EINVAL, known ones without a program EFAULT. TSYNC_ESRCH came after CONTINUE.
  errno = 0;
  syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
          SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_TSYNC_ESRCH,
          nullptr);
  return errno == EFAULT;
}

std::string InstallFilter(const Program& program, bool with_listener, int* listener) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return "no_new_privs cannot be set: " + ErrnoText();
  sock_fprog filter{static_cast<unsigned short>(program.size()), const_cast<sock_filter*>(program.data())};
  // What the filter itself costs in speculation is not worth what the mitigation costs the driver's threads
  // on kernels before 5.16; later ones leave it off by themselves.
  unsigned long flags = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW;
  if (with_listener) flags |= SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_TSYNC_ESRCH;
  const long result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
  if (result < 0 || (!with_listener && result != 0)) {
    return "the system call filter cannot be installed: " +
           (result > 0 ? "a thread has another one" : ErrnoText());
  }
  if (with_listener) *listener = int(result);
  return {};
}

}  // namespace causeway::sandbox
