// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/start/confinement.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <span>

#include "host_backend/common/result.h"
#include "host_backend/common/unique_fd.h"
#include "host_backend/sandbox/cache_quota.h"
#include "host_backend/sandbox/file_rules.h"
#include "host_backend/worker/process/output.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::host {
namespace {

// One more than the region's descriptor, so that no descriptor lies above it.
constexpr rlim_t kDescriptors = sandbox::kRegionDescriptor + 1;

std::string NamespaceText(const std::string& letters) {
  if (letters.find('n') == std::string::npos) return "; no namespaces of their own, which this host forbids";
  return letters.find('s') != std::string::npos ? ", own namespaces" : ", own namespaces, but no /dev/shm";
}

// Of this thread; setresuid has taken them from all others as well.
bool HasCapabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (syscall(SYS_capget, &header, data) != 0) return true;
  return (data[0].permitted | data[1].permitted | data[0].effective | data[1].effective) != 0;
}

}  // namespace

// The kernel makes a larger table of descriptors at once while there is one thread. With more it waits until
// every processor has passed through the scheduler (an RCU grace period): 10 ms on an idle host, more on a
// busy one. The table does not become smaller again.
void Confinement::GrowDescriptorTable() const {
  close(dup3(STDIN_FILENO, sandbox::kRegionDescriptor, O_CLOEXEC));
}

void LimitResource(__rlimit_resource resource, rlim_t most) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) return;
  limit.rlim_max = std::min(limit.rlim_max, most);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(resource, &limit);
}

// With one thread: later each of the driver's would have to run for it.
void Confinement::LeaveGroups() {
  const gid_t group = options_.device_group;
  if (options_.user_count != 0 && setgroups(group != 0 ? 1 : 0, &group) != 0)
    problem_ = "cannot leave the groups of its parent: " + ErrnoText();
}

void Confinement::BeforeDriver(const std::string& library) {
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  LimitResource(RLIMIT_NOFILE, kDescriptors);
  LimitResource(RLIMIT_CORE, 0);
  GrowDescriptorTable();
  LeaveGroups();
  if (sandbox::kSanitized) return;
  sandbox::FileRules rules = sandbox::WorkerRules(library, options_.gpus);
  nodes_ = rules.gpus;
  if (!options_.cache.empty()) rules.writable.push_back(options_.cache);
  // Only where it is the workers' own folder: the host's has the regions.
  if (options_.namespaces.find('s') != std::string::npos) rules.flat.emplace_back("/dev/shm");
  for (const char* name : {"SOFTWARE_GPU_CONTEXT_PLACES", "SOFTWARE_GPU_MISUSE_FILE"}) {
    if (const char* file = getenv(name)) rules.devices.emplace_back(file);
  }
  files_ = sandbox::ApplyFileRules(rules);
}

std::string Confinement::AfterDriver(void* address, sandbox::Kind kind, WorkerReady* ready) {
  const sandbox::DriverIdentity identity = sandbox::IdentifyDriver(address);
  const sandbox::ChosenProfile chosen = sandbox::ChooseProfile(identity, kind);
  notifies_ = sandbox::CanNotify();
  if (kind == sandbox::Kind::kCuda) OpenPipes();
  const bool can_filter = !sandbox::kSanitized && (notifies_ || options_.mode == sandbox::Mode::kEnforce);
  std::string text = can_filter ? "system calls by profile " + chosen.profile.name : "no system call filter";
  if (can_filter && !chosen.exact)
    text += " (the nearest to " + identity.driver + " " + identity.version + ")";
  if (sandbox::kSanitized) text += ": built with a sanitizer";
  if (!notifies_) text += "; this kernel is too old (before 5.7) to ask the daemon about mappings";
  if (options_.mode != sandbox::Mode::kEnforce)
    text += std::string("; calls outside of it are reported (") + NameOf(options_.mode) + ")";
  if (!sandbox::kSanitized)
    text +=
        files_ != 0 ? ", files by Landlock" : "; this kernel has no Landlock, so files are a matter of users";
  text += NamespaceText(options_.namespaces) + nodes_;
  snprintf(ready->sandbox, sizeof ready->sandbox, "%s", text.c_str());
  if (!can_filter) return {};
  auto program = sandbox::BuildFilter(chosen.profile, {options_.mode, getpid(), notifies_});
  if (!program.ok()) return program.error();
  filter_ = std::move(program.value());
  return {};
}

// libc does it in all threads.
std::string Confinement::BecomeUser(uint32_t user) const {
  if (options_.user_count == 0 && user == 0) return {};
  if (user < options_.first_user || user - options_.first_user >= options_.user_count)
    return "was told to become user " + std::to_string(user) + ", which is none of its users";
  const pid_t parent = getppid();
  if (setresgid(user, user, user) != 0 || setresuid(user, user, user) != 0) {
    return "cannot become user " + std::to_string(user) + ": " + ErrnoText();
  }
  // The kernel forgets it with the user.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  if (HasCapabilities()) return "capabilities are left after becoming user " + std::to_string(user);
  return {};
}

// As the scope's user, while this process is nobody's: where there is no user, the folder is another's.
void Confinement::HoldCache(const WorkerScope& scope) const {
  const char* path = getenv("CUDA_CACHE_PATH");
  if (scope.user == 0 || scope.cache_bytes == 0 || options_.cache.empty() || path == nullptr) return;
  const UniqueFd folder(open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC));
  if (!folder) return;
  const sandbox::CacheUse use = sandbox::HoldToQuota(folder.get(), scope.cache_bytes);
  if (!use.emptied) return;
  dprintf(Output::LogFd(),
          "causeway-worker[%d]: the compiled kernels of this VM or user were removed, because they were %llu "
          "MiB in "
          "%llu files; compiled_kernels_mib in causewayd's configuration is how much they may be\n",
          getpid(), static_cast<unsigned long long>(use.bytes >> 20),
          static_cast<unsigned long long>(use.files));
}

// A checkpointer opens the driver's pipes by /proc, as the user that this process becomes. Whoever can look
// into this process's /proc entry is asked first, so that the file's own rights may be anybody's.
void Confinement::OpenPipes() const {
  constexpr int kDriversDescriptors = 1024;  // it has some forty
  for (int each = STDERR_FILENO + 1; each < kDriversDescriptors; ++each) {
    struct stat info {};
    if (fstat(each, &info) == 0 && S_ISFIFO(info.st_mode) && info.st_uid == geteuid() &&
        each != Output::LogFd()) {
      fchmod(each, 0666);
    }
  }
}

void Confinement::Belong(const WorkerScope& scope) {
  if (problem_.empty() && (scope.user != user_ || user_ == 0)) problem_ = BecomeUser(scope.user);
  if (!problem_.empty()) return;
  user_ = scope.user;
  HoldCache(scope);
}

std::string Confinement::Enter(int control, const WorkerAssignment& assignment) {
  Belong({assignment.user, 0, assignment.cache_bytes});
  if (!problem_.empty()) return problem_;
  // Not to be traced or read by others of the same user.
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  if (filter_.empty()) return {};
  int listener = -1;
  const std::string problem = sandbox::InstallFilter(filter_, notifies_, &listener);
  if (!problem.empty()) return problem;
  const UniqueFd own(listener);
  const WorkerConfined confined{uint32_t(filter_.size()), notifies_ ? 1u : 0u, {}};
  if (!SendPacket(control, &confined, sizeof confined, std::span(&listener, notifies_ ? 1 : 0)))
    return "the daemon cannot be told of the system call filter";
  return {};
}

}  // namespace causeway::host
