// SPDX-License-Identifier: Apache-2.0
// Checkpoints of CUDA processes of this machine, this one included, by their process numbers here.
#include <algorithm>

#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/sharing_messages.h"

using namespace causeway;
using namespace causeway::guest;

namespace {

// Reserved fields must be zero, as the driver asks.
template <class T, size_t N>
bool IsZero(const T (&values)[N]) {
  return std::all_of(values, values + N, [](T value) { return value == 0; });
}

}  // namespace

extern "C" {

CUresult cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return AskHost(Op::cuCheckpointProcessGetState, CheckpointBody{pid, 0, 0, 0}, state);
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* arguments) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (arguments == nullptr) return AskHost(Op::cuCheckpointProcessLock, CheckpointBody{pid, 0, 0, 0});
  if (arguments->reserved0 != 0 || !IsZero(arguments->reserved1)) return CUDA_ERROR_INVALID_VALUE;
  return AskHost(Op::cuCheckpointProcessLock, CheckpointBody{pid, arguments->timeoutMs, 0, 1});
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs* arguments) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (arguments != nullptr && !IsZero(arguments->reserved)) return CUDA_ERROR_INVALID_VALUE;
  return AskHost(Op::cuCheckpointProcessCheckpoint,
                 CheckpointBody{pid, 0, 0, arguments != nullptr ? 1u : 0u});
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* arguments) {
  if (const CUresult result = InitialisedOrError()) return result;
  const uint32_t pairs = arguments != nullptr ? arguments->gpuPairsCount : 0;
  if (pairs > kMaxCheckpointPairs || (pairs != 0 && arguments->gpuPairs == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  if (arguments != nullptr && (!IsZero(arguments->reserved) || arguments->reserved1 != 0))
    return CUDA_ERROR_INVALID_VALUE;
  PendingCall call(Op::cuCheckpointProcessRestore);
  call.writer().Put(CheckpointBody{pid, 0, pairs, arguments != nullptr ? 1u : 0u});
  for (uint32_t i = 0; i < pairs; ++i) call.writer().Put(arguments->gpuPairs[i]);
  return call.Finish();
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs* arguments) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (arguments != nullptr && !IsZero(arguments->reserved)) return CUDA_ERROR_INVALID_VALUE;
  return AskHost(Op::cuCheckpointProcessUnlock, CheckpointBody{pid, 0, 0, arguments != nullptr ? 1u : 0u});
}

}  // extern "C"
