// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/start/checkpointer.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "host_backend/common/worker_control.h"
#include "host_backend/sandbox/profile.h"
#include "host_backend/worker/api/guarded_driver.h"
#include "host_backend/worker/driver/driver.h"
#include "host_backend/worker/start/confinement.h"

namespace causeway::host {
namespace {

CUresult Restore(pid_t target, const CheckpointOrder& order) {
  CUcheckpointGpuPair pairs[kMaxGpuPairs];
  static_assert(sizeof pairs == sizeof order.pair);
  std::memcpy(pairs, order.pair, sizeof pairs);
  CUcheckpointRestoreArgs arguments{};
  arguments.gpuPairsCount = std::min(order.pairs, kMaxGpuPairs);
  arguments.gpuPairs = arguments.gpuPairsCount != 0 ? pairs : nullptr;
  return TheDriver().cuCheckpointProcessRestore(target, &arguments);
}

CheckpointAnswer Call(pid_t target, const CheckpointOrder& order) {
  const Driver& driver = TheDriver();
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  CUprocessState state{};
  CUcheckpointLockArgs lock{};
  lock.timeoutMs = order.timeout_ms;
  switch (order.action) {
    case CheckpointAction::kGetState:
      result = driver.cuCheckpointProcessGetState(target, &state);
      break;
    case CheckpointAction::kLock:
      result = driver.cuCheckpointProcessLock(target, &lock);
      break;
    case CheckpointAction::kCheckpoint:
      result = driver.cuCheckpointProcessCheckpoint(target, nullptr);
      break;
    case CheckpointAction::kRestore:
      result = Restore(target, order);
      break;
    case CheckpointAction::kUnlock:
      result = driver.cuCheckpointProcessUnlock(target, nullptr);
      break;
  }
  return {static_cast<uint32_t>(result), static_cast<uint32_t>(state), 0};
}

// As a worker's: what a target says to the driver here may be its guest's wish.
bool Confine(sandbox::Mode mode) {
  if (sandbox::kSanitized || mode != sandbox::Mode::kEnforce) return true;
  const auto identity = sandbox::IdentifyDriver(reinterpret_cast<void*>(TheDriver().cuInit));
  const auto chosen = sandbox::ChooseProfile(identity, sandbox::Kind::kCuda);
  const auto program = sandbox::BuildFilter(chosen.profile, {mode, getpid(), false});
  int none = -1;
  return program.ok() && sandbox::InstallFilter(program.value(), false, &none).empty();
}

}  // namespace

int RunCheckpointer(int control, pid_t target, const std::string& driver_path, sandbox::Mode mode) {
  constexpr rlim_t kDescriptors = 256;
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  LimitResource(RLIMIT_NOFILE, kDescriptors);
  LimitResource(RLIMIT_CORE, 0);
  CheckpointOrder order;
  if (target <= 0 || recv(control, &order, sizeof order, 0) != ssize_t(sizeof order)) return 1;
  CheckpointAnswer answer{CUDA_ERROR_OPERATING_SYSTEM, 0, 0};
  std::string error;
  const CUresult started =
      OpenDriver(driver_path, &error) ? TheDriver().cuInit(0) : CUDA_ERROR_OPERATING_SYSTEM;
  if (started != CUDA_SUCCESS) answer.result = static_cast<uint32_t>(started);
  if (started == CUDA_SUCCESS && Confine(mode)) answer = Call(target, order);
  const bool told = send(control, &answer, sizeof answer, MSG_NOSIGNAL) == ssize_t(sizeof answer);
  // Not through the driver's own end: the process takes nothing with it that matters.
  _exit(told ? 0 : 1);
}

}  // namespace causeway::host
