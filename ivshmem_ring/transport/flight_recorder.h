// SPDX-License-Identifier: Apache-2.0
// The writing side of the flight recorder, which keeps the times of each link's last messages (FlightImage in
// ivshmem_ring/transport/layout.h); docs/measuring.md says what for. Guest and worker each have one. It costs
// a message one read of the time stamp counter and a store to a line that no other processor writes.
//
// Threads: one thread at a time calls Begin for a link. End may be called by several. Times are in ticks of
// the time stamp counter.
#pragma once
#include <pthread.h>

#include <atomic>

#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/record.h"

namespace causeway {

inline uint64_t FlightTicks() {
  return __builtin_ia32_rdtsc();
}

// Reads both clocks, as one moment.
FlightClock ReadFlightClock();

// A number for the calling thread that no other living thread of the process has.
inline uint32_t FlightThread() {
  return static_cast<uint32_t>(pthread_self() >> 6);
}

// What is noted of a message: its opcode, its final size, and its number in the link.
struct FlightMessage {
  uint16_t op;
  uint32_t bytes;
  uint64_t sequence;
};

class FlightRecorder {
 public:
  static constexpr uint32_t kMainLink = kChannelCount;

  // `image` is the shared memory to write to, and outlives the recorder. Null: nothing is recorded.
  explicit FlightRecorder(FlightImage* image);

  // A message of `link` begins. `who` is what FlightRecord::who says on this side.
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
    // Only the writer of the submission queue writes the header.
    if (link == kMainLink && ticks - image_->header.last.ticks >= kClockTicks) [[unlikely]]
      image_->header.last = ReadFlightClock();
  }
  // The message of that sequence ends. If a later message has taken its place, nothing is written.
  void End(uint32_t link, uint64_t sequence, uint64_t ticks) {
    if (image_ == nullptr) return;
    FlightRecord& record = At(link, sequence);
    // Several threads may report ends of posted records. If a later message takes the place right now, it has
    // a wrong end until its own is written.
    const uint32_t number = std::atomic_ref<uint32_t>(record.number).load(std::memory_order_relaxed);
    if (number == static_cast<uint32_t>(sequence) + 1) Store(record.end, ticks);
  }

 private:
  // Both clocks are read again after so many ticks, a fraction of a second.
  static constexpr uint64_t kClockTicks = uint64_t{1} << 30;

  // The readers are other processes, which may look at any moment (host_backend/command/trace/trace_export.cc).
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
