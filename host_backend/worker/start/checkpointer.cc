// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/start/checkpointer.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "host_backend/common/worker_control.h"
#include "host_backend/sandbox/profile.h"
#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::host {
namespace {

// Of the driver library, which this process opens as any program would.
template <class Function>
Function* Find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

CUresult Restore(void* library, pid_t target, const CheckpointOrder& order) {
  auto* restore = Find<decltype(::cuCheckpointProcessRestore)>(library, "cuCheckpointProcessRestore");
  if (restore == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUcheckpointGpuPair pairs[kMaxGpuPairs];
  static_assert(sizeof pairs == sizeof order.pair);
  std::memcpy(pairs, order.pair, sizeof pairs);
  CUcheckpointRestoreArgs arguments{};
  arguments.gpuPairsCount = std::min(order.pairs, kMaxGpuPairs);
  arguments.gpuPairs = arguments.gpuPairsCount != 0 ? pairs : nullptr;
  return restore(target, &arguments);
}

CheckpointAnswer Call(void* library, pid_t target, const CheckpointOrder& order) {
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  CUprocessState state{};
  switch (order.action) {
    case CheckpointAction::kGetState:
      if (auto* get = Find<decltype(::cuCheckpointProcessGetState)>(library, "cuCheckpointProcessGetState"))
        result = get(target, &state);
      break;
    case CheckpointAction::kLock:
      if (auto* lock = Find<decltype(::cuCheckpointProcessLock)>(library, "cuCheckpointProcessLock")) {
        CUcheckpointLockArgs arguments{};
        arguments.timeoutMs = order.timeout_ms;
        result = lock(target, &arguments);
      }
      break;
    case CheckpointAction::kCheckpoint:
      if (auto* checkpoint =
              Find<decltype(::cuCheckpointProcessCheckpoint)>(library, "cuCheckpointProcessCheckpoint"))
        result = checkpoint(target, nullptr);
      break;
    case CheckpointAction::kRestore:
      result = Restore(library, target, order);
      break;
    case CheckpointAction::kUnlock:
      if (auto* unlock = Find<decltype(::cuCheckpointProcessUnlock)>(library, "cuCheckpointProcessUnlock"))
        result = unlock(target, nullptr);
      break;
  }
  return {static_cast<uint32_t>(result), static_cast<uint32_t>(state), 0};
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // sanitizers make calls of their own
#else
constexpr bool kSanitized = false;
#endif

// As a worker's: what a target says to the driver here may be its guest's wish.
bool Confine(void* library, void* address, sandbox::Mode mode) {
  if (kSanitized || mode != sandbox::Mode::kEnforce) return true;
  const auto identity = sandbox::IdentifyDriver(library, address);
  const auto chosen = sandbox::ChooseProfile(identity, sandbox::Kind::kCuda);
  const auto program = sandbox::BuildFilter(chosen.profile, {mode, getpid(), false});
  int none = -1;
  return program.ok() && sandbox::InstallFilter(program.value(), false, &none).empty();
}

void Limit(__rlimit_resource resource, rlim_t most) {
  const rlimit limit{most, most};
  setrlimit(resource, &limit);
}

}  // namespace

int RunCheckpointer(int control, pid_t target, const std::string& driver_path, sandbox::Mode mode) {
  constexpr rlim_t kDescriptors = 256;
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  Limit(RLIMIT_NOFILE, kDescriptors);
  Limit(RLIMIT_CORE, 0);
  CheckpointOrder order;
  if (target <= 0 || recv(control, &order, sizeof order, 0) != ssize_t(sizeof order)) return 1;
  void* library = dlopen(driver_path.c_str(), RTLD_NOW | RTLD_LOCAL);
  auto* init = library != nullptr ? Find<decltype(::cuInit)>(library, "cuInit") : nullptr;
  CheckpointAnswer answer{CUDA_ERROR_OPERATING_SYSTEM, 0, 0};
  if (init != nullptr) answer.result = static_cast<uint32_t>(init(0));
  if (answer.result == CUDA_SUCCESS) {
    const bool confined = Confine(library, reinterpret_cast<void*>(init), mode);
    answer = confined ? Call(library, target, order) : CheckpointAnswer{CUDA_ERROR_OPERATING_SYSTEM, 0, 0};
  }
  const bool told = send(control, &answer, sizeof answer, MSG_NOSIGNAL) == ssize_t(sizeof answer);
  // Not through the driver's own end: the process takes nothing with it that matters.
  _exit(told ? 0 : 1);
}

}  // namespace causeway::host
