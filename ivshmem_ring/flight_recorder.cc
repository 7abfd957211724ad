// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/flight_recorder.h"

#include <time.h>

#include <atomic>

namespace causeway {
namespace {

constexpr uint64_t kClockTicks = uint64_t{1}
                                 << 30;  // between two readings of both clocks: a fraction of a second

// Readers are other processes, which may look at any moment (host_backend/command/trace_export.cc).
template <class T>
void Store(T& word, T value, std::memory_order order = std::memory_order_relaxed) {
  std::atomic_ref<T>(word).store(value, order);
}

}  // namespace

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

FlightRecord& FlightRecorder::At(uint32_t link, uint64_t sequence) {
  return link == kMainLink ? image_->main[sequence % kFlightMainRecords]
                           : image_->channel[link % kChannelCount][sequence % kFlightChannelRecords];
}

void FlightRecorder::Begin(uint32_t link, const FlightMessage& message, uint32_t who, uint64_t ticks) {
  if (image_ == nullptr) return;
  FlightRecord& record = At(link, message.sequence);
  Store(record.number, 0u);
  Store(record.begin, ticks);
  Store(record.end, uint64_t{0});
  Store(record.who, who);
  Store(record.bytes, message.bytes);
  Store(record.op, message.op);
  Store(record.number, static_cast<uint32_t>(message.sequence) + 1, std::memory_order_release);
  if (link != kMainLink || ticks - image_->header.last.ticks < kClockTicks) return;
  image_->header.last = ReadFlightClock();  // the main link's writer alone
}

void FlightRecorder::End(uint32_t link, uint64_t sequence, uint64_t ticks) {
  if (image_ == nullptr) return;
  FlightRecord& record = At(link, sequence);
  // Of the main link several threads may tell ends. If a later record takes the place just now, its end is
  // wrong for as long as it has none of its own.
  const uint32_t number = std::atomic_ref<uint32_t>(record.number).load(std::memory_order_relaxed);
  if (number == static_cast<uint32_t>(sequence) + 1) Store(record.end, ticks);
}

}  // namespace causeway
