// SPDX-License-Identifier: Apache-2.0
// What a copy is, and when it may return, as the call that asks for it says.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstddef>
#include <cstdint>

namespace causeway::guest {

enum class CopyForm : uint32_t {
  kAsynchronous = 0,   // on the stream; pageable sources are captured, pageable destinations waited for
  kSynchronous = 1,    // the plain call, ordered by the legacy stream
  kStreamThenWait = 2  // on the stream, and done when the call returns (per-thread default stream)
};

// Between linear memory of the device and ordinary memory of the program.
struct LinearCopy {
  CUdeviceptr device;  // known to be good
  std::byte* host;
  uint64_t bytes;
  CUstream stream;
  CopyForm form;
  bool to_device;
  // The copy is over when its source is taken: nothing was left to wait for.
  bool leaves;
  bool idle = false;   // nothing is known that its stream would have to do first
  uint64_t posts = 0;  // records posted up to the end of a copy that was waited for
};

}  // namespace causeway::guest
