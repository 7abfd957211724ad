// SPDX-License-Identifier: Apache-2.0
// Copies between this process and the device. Sizes are in bytes. The results are what the program's call
// returns. Any thread may call these functions; they send messages.
#pragma once
#include "guest_lib/stream/capture_rule.h"
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

#include "guest_lib/session/context.h"
#include "guest_lib/session/session.h"
#include "ivshmem_ring/messages/copy_messages.h"

namespace causeway::guest {

// The beginning of every copy and fill, once its stream's context is current (WithContextOf): there must be one, and forms
// that wait are refused beside captures before anything else is looked at.
inline CUresult BeginCopy(CUstream stream, CopyForm form) {
  if (const CUresult result = NeedContext()) return result;
  switch (form) {
    case CopyForm::kAsynchronous:
      return CUDA_SUCCESS;
    case CopyForm::kSynchronous:
      return CaptureRefusal(CaptureRule::kInStream, CU_STREAM_LEGACY);
    case CopyForm::kStreamThenWait:
      return CaptureRefusal(CaptureRule::kOutsideCaptures, stream);
  }
  return CUDA_SUCCESS;
}
// The same for an asynchronous copy between contexts, which no capture takes.
inline CUresult BeginPeerCopy(CUstream stream) {
  if (const CUresult result = NeedContext()) return result;
  return CaptureRefusal(CaptureRule::kOutsideCaptures, stream);
}
// The answer to a copy or fill that this library refuses, or that has nothing to do.
inline CUresult AnswerCopy(CUresult own, CUstream stream, CopyForm form) {
  return form == CopyForm::kAsynchronous ? AnswerBesideCaptures(own, CaptureRule::kInStream, stream) : own;
}
// The error of a copy whose description or host address is null. Where there is no context, or a capture forbids the copy, it is the error
// of BeginCopy, because NVIDIA's library looks at the context and at captures first; otherwise it is CUDA_ERROR_INVALID_VALUE.
inline CUresult RefuseCopy(CUstream stream, CopyForm form) {
  const WithContextOf scope(stream);
  if (const CUresult result = BeginCopy(stream, form)) return result;
  return AnswerCopy(CUDA_ERROR_INVALID_VALUE, stream, form);
}

// Each side may be memory of any kind, which its address decides.
CUresult CopyUnified(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream, CopyForm form);

// Both sides are on the device, or in memory that it reaches. It waits for the copy if `form` does.
CUresult CopyOnDevice(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream, CopyForm form);

// Every 2D and 3D copy. The contexts are those of cuMemcpy3DPeer, and null in all other copies.
CUresult CopyBox(CUDA_MEMCPY3D box, CUstream stream, CopyForm form, CUcontext source = nullptr,
                 CUcontext destination = nullptr);

// Waits for a copy or a fill that returns when it is done: the driver allows those beside a capture in every mode, and
// a wait that the program has asked for in the relaxed mode alone. On the legacy stream they fail where it would have to wait
// for a stream that captures.
inline CUresult AwaitCopied(CUstream stream) {
  CUstreamCaptureStatus status;
  if (AnyCapture() && cuStreamIsCapturing(stream, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  const RelaxedCaptures relaxed;
  return cuStreamSynchronize(stream);
}

// While streams wait for functions of the program, those may still write pinned or registered memory before the turn of a copy from it comes.
// So the device is let reach such memory, and the host reads it then. To be called before it is looked what kind of memory is at `source`.
void NameBehindFunctions(uint64_t source);
// Waits for the stream where the device cannot reach such memory. To be called before the bytes at `source` are read, and not in a capture.
CUresult AwaitFunctionsBefore(CUstream stream, uint64_t source);

}  // namespace causeway::guest
