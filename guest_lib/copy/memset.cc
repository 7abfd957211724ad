// SPDX-License-Identifier: Apache-2.0
// Memsets: checked here against what this process allocated, then posted. On device memory the synchronous
// forms do not wait natively either; host memory is filled when they return.
#include "guest_lib/copy/copy.h"
#include "guest_lib/memory/memory.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

enum class Until { kQueued, kDone };

// One row of a fill, and how many there are.
struct Area {
  CUdeviceptr to;
  uint64_t element, width, height, pitch;  // width in elements
};

CUresult Check(const Area& area, bool* known) {
  *known = true;
  if (const CUresult result = NeedContext()) return result;
  if (area.width == 0 || area.height == 0) return CUDA_SUCCESS;
  constexpr uint64_t kLimit = uint64_t{1} << 47;
  if (area.to % area.element != 0 || area.width > kLimit || area.height > kLimit || area.pitch > kLimit ||
      (area.height > 1 && (area.pitch % area.element != 0 || area.pitch < area.width * area.element))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto bytes = static_cast<unsigned __int128>(area.height - 1) * area.pitch + area.width * area.element;
  if (bytes > kLimit) return CUDA_ERROR_INVALID_VALUE;
  return CheckDeviceRange(area.to, static_cast<uint64_t>(bytes), known);
}

// What a capture makes of a fill in the stream, whatever is filled: the driver looks at that first. A fill of
// nothing ends the captures which the legacy stream would have to wait for, as the program's own fill does.
CUresult CaptureError(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!AnyCapture()) return CUDA_SUCCESS;
  if (cuStreamIsCapturing(stream, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    Wait<Op::cuMemsetD8Async>(CUdeviceptr{0}, static_cast<unsigned char>(0), size_t{0}, stream);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  const bool ended = status == CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return ended ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

// A fill of the synchronous form goes to the legacy stream: those take no stream.
template <Op op, class... P>
CUresult Fill(const Area& area, CUstream stream, Until until, P... parameters) {
  const WithContextOf scope(stream);
  bool known = false;
  const bool nothing = area.width == 0 || area.height == 0;
  const CUresult wrong = Check(area, &known);
  if (wrong != CUDA_SUCCESS || nothing) [[unlikely]] {
    const CUresult captured = wrong == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : CaptureError(stream);
    return captured != CUDA_SUCCESS ? captured : wrong;
  }
  const CUresult result = known ? PostWork<op>(SubmissionOn(stream), parameters...) : Wait<op>(parameters...);
  if (result != CUDA_SUCCESS || until == Until::kQueued) return result;
  const bool waits = KindOfPointer(area.to) != PointerKind::kDevice || SyncsMemops(area.to);
  return waits ? AwaitCopied(stream) : CUDA_SUCCESS;
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

// The plain form, the asynchronous one, and the plain one of the per-thread default stream.
#define LINEAR(name, T)                                                                                  \
  CUresult name##_v2(CUdeviceptr to, T value, size_t count) {                                            \
    return Fill<Op::name##_v2>({to, sizeof(T), count, 1, 0}, nullptr, Until::kDone, to, value, count);   \
  }                                                                                                      \
  CUresult name##Async(CUdeviceptr to, T value, size_t count, CUstream stream) {                         \
    return Fill<Op::name##Async>({to, sizeof(T), count, 1, 0}, stream, Until::kQueued, to, value, count, \
                                 stream);                                                                \
  }                                                                                                      \
  CUresult name##_v2_ptds(CUdeviceptr to, T value, size_t count) {                                       \
    return Fill<Op::name##Async>({to, sizeof(T), count, 1, 0}, CU_STREAM_PER_THREAD, Until::kDone, to,   \
                                 value, count, CU_STREAM_PER_THREAD);                                    \
  }
#define ROWS(name, T)                                                                                       \
  CUresult name##_v2(CUdeviceptr to, size_t pitch, T value, size_t width, size_t height) {                  \
    return Fill<Op::name##_v2>({to, sizeof(T), width, height, pitch}, nullptr, Until::kDone, to, pitch,     \
                               value, width, height);                                                       \
  }                                                                                                         \
  CUresult name##Async(CUdeviceptr to, size_t pitch, T value, size_t width, size_t height,                  \
                       CUstream stream) {                                                                   \
    return Fill<Op::name##Async>({to, sizeof(T), width, height, pitch}, stream, Until::kQueued, to, pitch,  \
                                 value, width, height, stream);                                             \
  }                                                                                                         \
  CUresult name##_v2_ptds(CUdeviceptr to, size_t pitch, T value, size_t width, size_t height) {             \
    return Fill<Op::name##Async>({to, sizeof(T), width, height, pitch}, CU_STREAM_PER_THREAD, Until::kDone, \
                                 to, pitch, value, width, height, CU_STREAM_PER_THREAD);                    \
  }

extern "C" {
LINEAR(cuMemsetD8, unsigned char)
LINEAR(cuMemsetD16, unsigned short)
LINEAR(cuMemsetD32, unsigned int)
ROWS(cuMemsetD2D8, unsigned char)
ROWS(cuMemsetD2D16, unsigned short)
ROWS(cuMemsetD2D32, unsigned int)
}
