// SPDX-License-Identifier: Apache-2.0
// What the library asks or makes by itself is allowed while any stream captures, and ends no capture.
#pragma once
#include "ivshmem_ring/driver_api.h"

#include "guest_lib/context.h"

namespace causeway::guest {

// Of the calling thread, for as long as this lives.
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
