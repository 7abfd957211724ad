// SPDX-License-Identifier: Apache-2.0
// Checkpoints of CUDA processes. The guest names one of its processes; the daemon knows which worker serves
// it and whether the caller may control it: the same VM, and the same user or root.
#include <cstring>

#include "host_backend/sharing.h"

namespace causeway::host {
namespace {

struct Target {
  CheckpointBody body;
  int worker_pid = 0;

  // What the program passed as its arguments: null, or these.
  template <class Arguments>
  Arguments* OrNull(Arguments* arguments) const {
    return body.has_arguments != 0 ? arguments : nullptr;
  }
};

// The frame of all: calls `serve` with the driver's function and the process that is meant.
template <class Function, class Serve>
CUresult OnTarget(Session& session, Request& request, Function* function, const Serve& serve) {
  if (function == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  Target target;
  target.body = request.in.Get<CheckpointBody>();
  if (!request.in.ok()) return request.in.error();
  if (session.daemon() == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (target.body.guest_pid <= 0) return CUDA_ERROR_INVALID_VALUE;
  const auto guest_pid = static_cast<uint32_t>(target.body.guest_pid);
  if (const CUresult result = session.daemon()->FindWorker(guest_pid, &target.worker_pid)) return result;
  return serve(function, target);
}

}  // namespace

CUresult Serve_cuCheckpointProcessGetState(Session& session, Request& request) {
  const auto serve = [&](auto* get, const Target& target) {
    CUprocessState state{};
    if (const CUresult result = get(target.worker_pid, &state)) return result;
    request.out.Put(static_cast<uint32_t>(state));
    return request.out.error();
  };
  return OnTarget(session, request, DRIVER_FUNCTION(cuCheckpointProcessGetState), serve);
}

CUresult Serve_cuCheckpointProcessLock(Session& session, Request& request) {
  const auto serve = [](auto* lock, const Target& target) {
    CUcheckpointLockArgs arguments{};
    arguments.timeoutMs = target.body.timeout_ms;
    return lock(target.worker_pid, target.OrNull(&arguments));
  };
  return OnTarget(session, request, DRIVER_FUNCTION(cuCheckpointProcessLock), serve);
}

CUresult Serve_cuCheckpointProcessCheckpoint(Session& session, Request& request) {
  const auto serve = [](auto* checkpoint, const Target& target) {
    CUcheckpointCheckpointArgs arguments{};
    return checkpoint(target.worker_pid, target.OrNull(&arguments));
  };
  return OnTarget(session, request, DRIVER_FUNCTION(cuCheckpointProcessCheckpoint), serve);
}

CUresult Serve_cuCheckpointProcessRestore(Session& session, Request& request) {
  const auto serve = [&](auto* restore, const Target& target) {
    if (target.body.pairs > kMaxCheckpointPairs) return CUDA_ERROR_INVALID_VALUE;
    std::vector<CUcheckpointGpuPair> pairs(target.body.pairs);
    for (CUcheckpointGpuPair& pair : pairs) pair = request.in.Get<CUcheckpointGpuPair>();
    if (!request.in.ok()) return request.in.error();
    CUcheckpointRestoreArgs arguments{};
    arguments.gpuPairs = pairs.empty() ? nullptr : pairs.data();
    arguments.gpuPairsCount = target.body.pairs;
    return restore(target.worker_pid, target.OrNull(&arguments));
  };
  return OnTarget(session, request, DRIVER_FUNCTION(cuCheckpointProcessRestore), serve);
}

CUresult Serve_cuCheckpointProcessUnlock(Session& session, Request& request) {
  const auto serve = [](auto* unlock, const Target& target) {
    CUcheckpointUnlockArgs arguments{};
    return unlock(target.worker_pid, target.OrNull(&arguments));
  };
  return OnTarget(session, request, DRIVER_FUNCTION(cuCheckpointProcessUnlock), serve);
}

}  // namespace causeway::host
