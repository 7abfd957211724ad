// SPDX-License-Identifier: Apache-2.0
// What the driver says of captures (capture_rule.h): stands beside the rows because it sends some.
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

// A fill of nothing: as any work there, it breaks the captures for which the legacy stream would have to wait.
void BreakCapturesBesideLegacy(CUstream legacy) {
  Wait<Op::cuMemsetD8Async>(CUdeviceptr{0}, static_cast<unsigned char>(0), size_t{0}, legacy);
}

// A stream that captures cannot be waited for: the driver says so, and breaks the capture.
CUresult BreakCaptureOf(CUstream stream) {
  return Wait<Op::cuStreamSynchronize>(stream);
}

}  // namespace

CUresult AskCaptures(CaptureRule rule, CUstream stream) {
  if (rule == CaptureRule::kUnsafe) return CheckUnsafeCall();
  const WithContextOf scope(stream);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (ResolvedStream(stream).error() != CUDA_SUCCESS) return CUDA_SUCCESS;  // the call itself says so
  const CUresult asked = Wait<Op::cuStreamIsCapturing>(stream, &status);
  if (asked == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    BreakCapturesBesideLegacy(stream);
    return asked;
  }
  if (asked != CUDA_SUCCESS) return asked;  // perhaps of an earlier call, which is told once
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) {
    const bool unsafe = rule == CaptureRule::kAllocates || rule == CaptureRule::kUnsafeOutsideCaptures;
    return unsafe ? CheckUnsafeCall() : CUDA_SUCCESS;
  }
  if (rule == CaptureRule::kOutsideCaptures || rule == CaptureRule::kUnsafeOutsideCaptures)
    return BreakCaptureOf(stream);
  return status == CU_STREAM_CAPTURE_STATUS_INVALIDATED ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                                        : CUDA_SUCCESS;
}

CUresult AnswerBesideCaptures(CUresult own, CaptureRule rule, CUstream stream) {
  const bool first = own == CUDA_ERROR_INVALID_CONTEXT || own == CUDA_ERROR_NOT_INITIALIZED ||
                     own == CUDA_ERROR_DEINITIALIZED;
  if (first || !AnyCapture()) return own;
  if (const CUresult refusal = AskCaptures(rule, stream)) return refusal;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const WithContextOf scope(stream);
  if (rule == CaptureRule::kLaunches && own != CUDA_SUCCESS &&
      Wait<Op::cuStreamIsCapturing>(stream, &status) == CUDA_SUCCESS &&
      status == CU_STREAM_CAPTURE_STATUS_ACTIVE)
    BreakCaptureOf(stream);
  return own;
}

}  // namespace causeway::guest
