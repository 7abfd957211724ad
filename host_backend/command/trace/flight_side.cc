// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/trace/flight_side.h"

#include <cstring>
#include <memory>

namespace causeway {

void FlightSide::Read(std::string_view bytes) {
  const auto image = std::make_unique<FlightImage>();
  if (bytes.size() != sizeof(FlightImage)) return;
  std::memcpy(image.get(), bytes.data(), sizeof(FlightImage));
  header = image->header;
  present = header.version == kFlightVersion && header.record_bytes == sizeof(FlightRecord);
  if (!present) return;
  for (uint32_t i = 0; i < kFlightMainRecords; ++i) Add(image->main[i], kPostedLink, i, kFlightMainRecords);
  for (uint32_t link = 0; link < kChannelCount; ++link) {
    for (uint32_t i = 0; i < kFlightChannelRecords; ++i)
      Add(image->channel[link][i], link, i, kFlightChannelRecords);
  }
}

void FlightSide::Add(const FlightRecord& r, uint32_t link, uint32_t index, uint32_t capacity) {
  if (r.number == 0) return;
  if ((r.number - 1) % capacity != index || (r.end != 0 && r.end < r.begin)) {
    ++dropped;
    return;
  }
  const double end = r.end != 0 ? double(r.end) : 0;
  messages[{link, r.number}] = {link, r.number, double(r.begin), end, r.who, r.bytes, r.op};
}

void FlightSide::Convert(double ns_per_tick, FlightClock zero, double offset, double from, double to) {
  for (auto entry = messages.begin(); entry != messages.end();) {
    FlightSeen& m = entry->second;
    const auto ns = [&](double ticks) {
      return (ticks - double(zero.ticks)) * ns_per_tick + double(zero.ns) + offset;
    };
    m.begin = ns(m.begin);
    if (m.end != 0) m.end = ns(m.end);
    const bool good = m.begin >= from && m.begin <= to && (m.end == 0 || m.end <= to);
    dropped += good ? 0 : 1;
    entry = good ? std::next(entry) : messages.erase(entry);
  }
}

double TickLength(FlightClock from, FlightClock to) {
  constexpr double kLeastSpan = 0.01 * kFlightSecond;  // nearer moments do not tell how long a tick is
  const double ns = double(to.ns) - double(from.ns), ticks = double(to.ticks) - double(from.ticks);
  const double length = ticks > 0 ? ns / ticks : 0;
  return ns >= kLeastSpan && length > 0.05 && length < 1000 ? length : 0;
}

}  // namespace causeway
