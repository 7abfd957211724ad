// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <time.h>

#include <cstdint>

namespace causeway {

// The time of CLOCK_MONOTONIC in nanoseconds, which all processes of this machine see alike.
inline uint64_t MonotonicNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace causeway
