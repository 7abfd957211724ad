// SPDX-License-Identifier: Apache-2.0
// When a copy may return, as the call that asks for it says.
#pragma once
#include <cstdint>

namespace causeway::guest {

enum class CopyForm : uint32_t {
  kAsynchronous = 0,   // on the stream; pageable sources are captured, pageable destinations waited for
  kSynchronous = 1,    // the plain call, ordered by the legacy stream
  kStreamThenWait = 2  // on the stream, and done when the call returns (per-thread default stream)
};

}  // namespace causeway::guest
