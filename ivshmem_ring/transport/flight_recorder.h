// SPDX-License-Identifier: Apache-2.0
// The writing side of the flight recorder (FlightImage in ivshmem_ring/transport/layout.h), on either side of
// a link. What it costs a message: a read of the time stamp counter and a line that no other processor
// touches.
#pragma once
#include <pthread.h>

#include <atomic>

#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/record.h"

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
  void Begin(uint32_t link, const FlightMessage& message, uint32_t who, uint64_t ticks) {
    if (image_ == nullptr) return;
    FlightRecord& record = At(link, message.sequence);
    Store(record.number, 0u);
    Store(record.begin, ticks);
    Store(record.end, uint64_t{0});
    Store(record.who, who);
    Store(record.bytes, message.bytes);
    Store(record.op, message.op);
    Store(record.number, static_cast<uint32_t>(message.sequence) + 1, std::memory_order_release);
    // The main link's writer alone.
    if (link == kMainLink && ticks - image_->header.last.ticks >= kClockTicks) [[unlikely]]
      image_->header.last = ReadFlightClock();
  }
  // It ends, unless a later one has taken its place.
  void End(uint32_t link, uint64_t sequence, uint64_t ticks) {
    if (image_ == nullptr) return;
    FlightRecord& record = At(link, sequence);
    // Of the main link several threads may tell ends. If a later record takes the place just now, its end is
    // wrong for as long as it has none of its own.
    const uint32_t number = std::atomic_ref<uint32_t>(record.number).load(std::memory_order_relaxed);
    if (number == static_cast<uint32_t>(sequence) + 1) Store(record.end, ticks);
  }

 private:
  // Between two readings of both clocks: a fraction of a second.
  static constexpr uint64_t kClockTicks = uint64_t{1} << 30;

  // Readers are other processes, which may look at any moment (host_backend/command/trace_export.cc).
  template <class T>
  static void Store(T& word, T value, std::memory_order order = std::memory_order_relaxed) {
    std::atomic_ref<T>(word).store(value, order);
  }
  FlightRecord& At(uint32_t link, uint64_t sequence) {
    return link == kMainLink ? image_->main[sequence % kFlightMainRecords]
                             : image_->channel[link % kChannelCount][sequence % kFlightChannelRecords];
  }

  FlightImage* image_;
};

}  // namespace causeway
