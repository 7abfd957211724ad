// SPDX-License-Identifier: Apache-2.0
// Whether any stream of this process captures, which every message and every wait has to know, and what the
// library may do meanwhile. Beginning and ending captures is in capture.cc. Any thread may call these; the
// lock inside is innermost.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include "guest_lib/session/context.h"

namespace causeway::guest {

// Then what is posted else must be waited for. One load.
bool AnyCapture();
// A capture begins in the stream, or has ended.
void NoteCapture(Object* stream, bool begins);

// What the library asks or makes by itself in the calling thread is allowed while any stream captures, and
// ends no capture, for as long as this lives.
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
