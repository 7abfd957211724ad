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
};

CUresult FindTarget(Session& session, Request& request, Target* target) {
  target->body = request.in.Get<CheckpointBody>();
  if (!request.in.ok()) return request.in.error();
  if (session.daemon() == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (target->body.guest_pid <= 0) return CUDA_ERROR_INVALID_VALUE;
  return session.daemon()->FindWorker(static_cast<uint32_t>(target->body.guest_pid), &target->worker_pid);
}

}  // namespace

CUresult Serve_cuCheckpointProcessGetState(Session& session, Request& request) {
  const auto get = DRIVER_FUNCTION(cuCheckpointProcessGetState);
  if (get == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  Target target;
  if (const CUresult result = FindTarget(session, request, &target)) return result;
  CUprocessState state{};
  if (const CUresult result = get(target.worker_pid, &state)) return result;
  request.out.Put(static_cast<uint32_t>(state));
  return request.out.error();
}

CUresult Serve_cuCheckpointProcessLock(Session& session, Request& request) {
  const auto lock = DRIVER_FUNCTION(cuCheckpointProcessLock);
  if (lock == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  Target target;
  if (const CUresult result = FindTarget(session, request, &target)) return result;
  CUcheckpointLockArgs arguments{};
  arguments.timeoutMs = target.body.timeout_ms;
  return lock(target.worker_pid, target.body.has_arguments != 0 ? &arguments : nullptr);
}

CUresult Serve_cuCheckpointProcessCheckpoint(Session& session, Request& request) {
  const auto checkpoint = DRIVER_FUNCTION(cuCheckpointProcessCheckpoint);
  if (checkpoint == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  Target target;
  if (const CUresult result = FindTarget(session, request, &target)) return result;
  CUcheckpointCheckpointArgs arguments{};
  return checkpoint(target.worker_pid, target.body.has_arguments != 0 ? &arguments : nullptr);
}

CUresult Serve_cuCheckpointProcessRestore(Session& session, Request& request) {
  const auto restore = DRIVER_FUNCTION(cuCheckpointProcessRestore);
  if (restore == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  Target target;
  if (const CUresult result = FindTarget(session, request, &target)) return result;
  if (target.body.pairs > kMaxCheckpointPairs) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUcheckpointGpuPair> pairs(target.body.pairs);
  for (CUcheckpointGpuPair& pair : pairs) pair = request.in.Get<CUcheckpointGpuPair>();
  if (!request.in.ok()) return request.in.error();
  CUcheckpointRestoreArgs arguments{};
  arguments.gpuPairs = pairs.empty() ? nullptr : pairs.data();
  arguments.gpuPairsCount = target.body.pairs;
  return restore(target.worker_pid, target.body.has_arguments != 0 ? &arguments : nullptr);
}

CUresult Serve_cuCheckpointProcessUnlock(Session& session, Request& request) {
  const auto unlock = DRIVER_FUNCTION(cuCheckpointProcessUnlock);
  if (unlock == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  Target target;
  if (const CUresult result = FindTarget(session, request, &target)) return result;
  CUcheckpointUnlockArgs arguments{};
  return unlock(target.worker_pid, target.body.has_arguments != 0 ? &arguments : nullptr);
}

}  // namespace causeway::host
