// SPDX-License-Identifier: Apache-2.0
// Whether any stream of this process captures. Every message and every wait has to know that: while one
// captures, nothing is posted (docs/launch.md). Captures begin and end in guest_lib/graph/capture.cc. Any
// thread may call these functions; no message is sent with the lock inside held.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <atomic>
#include <cstddef>

#include "guest_lib/session/context.h"

namespace causeway::guest {

// Captures begun and not ended.
inline std::atomic<size_t> open_captures{0};
// Whether a stream captures. One load.
inline bool AnyCapture() {
  return open_captures.load(std::memory_order_acquire) != 0;
}
// To be called when a capture begins in the stream, or has ended there.
void NoteCapture(Object* stream, bool begins);

// While an object of this class lives, the calling thread has the relaxed capture mode, so that the driver
// permits calls that the library makes for itself beside a capture, and they do not invalidate it. The
// destructor restores the program's own mode.
class RelaxedCaptures {
 public:
  RelaxedCaptures() { ThisThread().capture_mode = CU_STREAM_CAPTURE_MODE_RELAXED; }
  ~RelaxedCaptures() { ThisThread().capture_mode = before_; }
  RelaxedCaptures(const RelaxedCaptures&) = delete;
  RelaxedCaptures& operator=(const RelaxedCaptures&) = delete;

 private:
  const CUstreamCaptureMode before_ = ThisThread().capture_mode;
};

}  // namespace causeway::guest
