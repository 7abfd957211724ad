// SPDX-License-Identifier: Apache-2.0
// Memsets: checked here against what this process allocated, then posted. On device memory the synchronous
// forms do not wait natively either; host memory is filled when they return.
#include "guest_lib/copy/copy.h"
#include "guest_lib/memory/memory.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

// One row of a fill, and how many there are.
struct Area {
  CUdeviceptr to;
  uint64_t element, width, height, pitch;  // width in elements
};

CUresult Check(const Area& area, bool* known) {
  *known = true;
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

// A fill of the synchronous form goes to the legacy stream: those take no stream.
template <Op op, class... P>
CUresult Fill(const Area& area, CUstream stream, CopyForm form, P... parameters) {
  const WithContextOf scope(stream);
  if (const CUresult result = BeginCopy(stream, form)) return result;
  bool known = false;
  const CUresult wrong = Check(area, &known);
  if (wrong != CUDA_SUCCESS || area.width == 0 || area.height == 0) [[unlikely]]
    return AnswerCopy(wrong, stream, form);
  const CUresult result = known ? PostWork<op>(SubmissionOn(stream), parameters...) : Wait<op>(parameters...);
  if (result != CUDA_SUCCESS || form == CopyForm::kAsynchronous) return result;
  const bool waits = KindOfPointer(area.to) != PointerKind::kDevice || SyncsMemops(area.to);
  return waits ? AwaitCopied(stream) : CUDA_SUCCESS;
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

// The plain form, the asynchronous one, and the plain one of the per-thread default stream.
#define LINEAR(name, T)                                                                                    \
  CUresult name##_v2(CUdeviceptr to, T value, size_t count) {                                              \
    return Fill<Op::name##_v2>({to, sizeof(T), count, 1, 0}, nullptr, CopyForm::kSynchronous, to, value,   \
                               count);                                                                     \
  }                                                                                                        \
  CUresult name##Async(CUdeviceptr to, T value, size_t count, CUstream stream) {                           \
    return Fill<Op::name##Async>({to, sizeof(T), count, 1, 0}, stream, CopyForm::kAsynchronous, to, value, \
                                 count, stream);                                                           \
  }                                                                                                        \
  CUresult name##_v2_ptds(CUdeviceptr to, T value, size_t count) {                                         \
    return Fill<Op::name##Async>({to, sizeof(T), count, 1, 0}, CU_STREAM_PER_THREAD,                       \
                                 CopyForm::kStreamThenWait, to, value, count, CU_STREAM_PER_THREAD);       \
  }
#define ROWS(name, T)                                                                                        \
  CUresult name##_v2(CUdeviceptr to, size_t pitch, T value, size_t width, size_t height) {                   \
    return Fill<Op::name##_v2>({to, sizeof(T), width, height, pitch}, nullptr, CopyForm::kSynchronous, to,   \
                               pitch, value, width, height);                                                 \
  }                                                                                                          \
  CUresult name##Async(CUdeviceptr to, size_t pitch, T value, size_t width, size_t height,                   \
                       CUstream stream) {                                                                    \
    return Fill<Op::name##Async>({to, sizeof(T), width, height, pitch}, stream, CopyForm::kAsynchronous, to, \
                                 pitch, value, width, height, stream);                                       \
  }                                                                                                          \
  CUresult name##_v2_ptds(CUdeviceptr to, size_t pitch, T value, size_t width, size_t height) {              \
    return Fill<Op::name##Async>({to, sizeof(T), width, height, pitch}, CU_STREAM_PER_THREAD,                \
                                 CopyForm::kStreamThenWait, to, pitch, value, width, height,                 \
                                 CU_STREAM_PER_THREAD);                                                      \
  }

extern "C" {
LINEAR(cuMemsetD8, unsigned char)
LINEAR(cuMemsetD16, unsigned short)
LINEAR(cuMemsetD32, unsigned int)
ROWS(cuMemsetD2D8, unsigned char)
ROWS(cuMemsetD2D16, unsigned short)
ROWS(cuMemsetD2D32, unsigned int)
}
