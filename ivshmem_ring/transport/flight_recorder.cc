// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/transport/flight_recorder.h"

#include <time.h>

namespace causeway {

FlightClock ReadFlightClock() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return {FlightTicks(),
          static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec)};
}

FlightRecorder::FlightRecorder(FlightImage* image) : image_(image) {
  if (image_ == nullptr) return;
  image_->header.record_bytes = sizeof(FlightRecord);
  image_->header.first = image_->header.last = ReadFlightClock();
  Store(image_->header.version, kFlightVersion, std::memory_order_release);
}

}  // namespace causeway
