// SPDX-License-Identifier: Apache-2.0
#include "host_backend/confinement.h"

#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <span>

#include "host_backend/packet.h"
#include "host_backend/unique_fd.h"

namespace causeway::host {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // sanitizers make calls of their own, up to processes that trace this one
#else
constexpr bool kSanitized = false;
#endif

// One more than the region's descriptor, so that no descriptor lies above it.
constexpr rlim_t kDescriptors = sandbox::kRegionDescriptor + 1;

void Limit(__rlimit_resource resource, rlim_t most) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) return;
  limit.rlim_max = std::min(limit.rlim_max, most);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(resource, &limit);
}

}  // namespace

void Confinement::BeforeDriver() {
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  Limit(RLIMIT_NOFILE, kDescriptors);
  Limit(RLIMIT_CORE, 0);
}

std::string Confinement::AfterDriver(void* address, sandbox::Kind kind, WorkerReady* ready) {
  Dl_info info{};
  void* library = dladdr(address, &info) != 0 ? dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY) : nullptr;
  const sandbox::DriverIdentity identity = sandbox::IdentifyDriver(library, address);
  if (library != nullptr) dlclose(library);
  const sandbox::ChosenProfile chosen = sandbox::ChooseProfile(identity, kind);
  notifies_ = sandbox::CanNotify();
  const bool can_filter = !kSanitized && (notifies_ || mode_ == sandbox::Mode::kEnforce);
  std::string text = can_filter ? "system calls by profile " + chosen.profile.name : "no system call filter";
  if (can_filter && !chosen.exact)
    text += " (the nearest to " + identity.driver + " " + identity.version + ")";
  if (kSanitized) text += ": built with a sanitizer";
  if (!notifies_) text += "; this kernel is too old (before 5.7) to ask the daemon about mappings";
  if (mode_ != sandbox::Mode::kEnforce)
    text += std::string("; calls outside of it are reported (") + NameOf(mode_) + ")";
  snprintf(ready->sandbox, sizeof ready->sandbox, "%s", text.c_str());
  if (!can_filter) return {};
  auto program = sandbox::BuildFilter(chosen.profile, {mode_, getpid(), notifies_});
  if (!program.ok()) return program.error();
  filter_ = std::move(program.value());
  return {};
}

std::string Confinement::Enter(int control, const WorkerAssignment&) {
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
