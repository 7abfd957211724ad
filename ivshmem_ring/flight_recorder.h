// SPDX-License-Identifier: Apache-2.0
// The writing side of the flight recorder (FlightImage in ivshmem_ring/layout.h), on either side of a link.
// What it costs a message: a read of the time stamp counter and a line that no other processor touches.
#pragma once
#include <pthread.h>

#include "ivshmem_ring/layout.h"
#include "ivshmem_ring/record.h"

namespace causeway {

inline uint64_t FlightTicks() {
  return __builtin_ia32_rdtsc();
}

// Both clocks now.
FlightClock ReadFlightClock();

// A number of the calling thread that no other living thread of the process has.
inline uint32_t FlightThread() {
  return static_cast<uint32_t>(pthread_self() >> 6);
}

// What is noted of a message: its final size and its number in the link.
struct FlightMessage {
  uint16_t op;
  uint32_t bytes;
  uint64_t sequence;
};

class FlightRecorder {
 public:
  static constexpr uint32_t kMainLink = kChannelCount;

  // Null: nothing is recorded.
  explicit FlightRecorder(FlightImage* image);

  // A message of `link` begins.
  void Begin(uint32_t link, const FlightMessage& message, uint32_t who, uint64_t ticks);
  // It ends, unless a later one has taken its place.
  void End(uint32_t link, uint64_t sequence, uint64_t ticks);

 private:
  FlightRecord& At(uint32_t link, uint64_t sequence);

  FlightImage* image_;
};

}  // namespace causeway
