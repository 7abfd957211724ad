// SPDX-License-Identifier: Apache-2.0
// Checkpoints of CUDA processes. The guest names one of its processes. A worker reaches no other process, so
// the daemon, which knows whose worker that is and whether the caller may control it, has the call made by a
// process of its own (checkpointer.cc).

#include "host_backend/worker/memory/sharing.h"

namespace causeway::host {
namespace {

static_assert(kMaxGpuPairs == kMaxCheckpointPairs && sizeof(GpuPair) == sizeof(CUcheckpointGpuPair));

// The frame of all. *state where the action is kGetState.
// `function`: of the driver, which does it in another process (start/checkpointer.h), and must have it.
template <class Function>
CUresult Ask(Session& session, Request& request, Function* function, CheckpointAction action,
             uint32_t* state = nullptr) {
  if (!Has(function) || session.daemon() == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const auto body = request.in.Get<CheckpointBody>();
  CheckpointOrder order{};
  if (!request.in.ok()) return request.in.error();
  if (body.guest_pid <= 0) return CUDA_ERROR_INVALID_VALUE;
  order.action = action;
  order.guest_pid = static_cast<uint32_t>(body.guest_pid);
  if (action == CheckpointAction::kLock) order.timeout_ms = body.timeout_ms;
  if (action == CheckpointAction::kRestore) {
    if (body.pairs > kMaxGpuPairs) return CUDA_ERROR_INVALID_VALUE;
    order.pairs = body.pairs;
    for (uint32_t i = 0; i < body.pairs; ++i) order.pair[i] = request.in.Get<GpuPair>();
    if (!request.in.ok()) return request.in.error();
  }
  uint32_t none = 0;
  return session.daemon()->Checkpoint(order, state != nullptr ? state : &none);
}

}  // namespace

CUresult Serve_cuCheckpointProcessGetState(Session& session, Request& request) {
  uint32_t state = 0;
  if (const CUresult result = Ask(session, request, TheDriver().cuCheckpointProcessGetState,
                                  CheckpointAction::kGetState, &state)) {
    return result;
  }
  request.out.Put(state);
  return request.out.error();
}

CUresult Serve_cuCheckpointProcessLock(Session& session, Request& request) {
  return Ask(session, request, TheDriver().cuCheckpointProcessLock, CheckpointAction::kLock);
}

CUresult Serve_cuCheckpointProcessCheckpoint(Session& session, Request& request) {
  return Ask(session, request, TheDriver().cuCheckpointProcessCheckpoint, CheckpointAction::kCheckpoint);
}

CUresult Serve_cuCheckpointProcessRestore(Session& session, Request& request) {
  return Ask(session, request, TheDriver().cuCheckpointProcessRestore, CheckpointAction::kRestore);
}

CUresult Serve_cuCheckpointProcessUnlock(Session& session, Request& request) {
  return Ask(session, request, TheDriver().cuCheckpointProcessUnlock, CheckpointAction::kUnlock);
}

}  // namespace causeway::host
