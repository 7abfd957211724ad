// SPDX-License-Identifier: Apache-2.0
// How long a GPU serves this process before it looks at the next one that has work. Kernels that run on for long compete by
// that (docs/sharing.md). What sets it is the driver's matter, so that tests have their own.
#pragma once
#include <cstdint>

namespace causeway::host {

class TimeSlices {
 public:
  virtual ~TimeSlices() = default;
  // Of all work of this process on all GPUs; 0: as the driver had set it. False: it is not in force, and what is true of it
  // was logged once. One thread; may take a millisecond.
  virtual bool Set(uint32_t microseconds) = 0;
};

}  // namespace causeway::host
