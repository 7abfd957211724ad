// SPDX-License-Identifier: Apache-2.0
// One side's flight record (ivshmem_ring/transport/layout.h), as far as it can be true: a record is garbage until here.
#pragma once
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

#include "ivshmem_ring/transport/layout.h"

namespace causeway {

inline constexpr uint32_t kPostedLink = kChannelCount;  // the submission queue's number among the links
inline constexpr double kFlightSecond = 1e9;

// One message as one side saw it; times in ticks, or after Convert in ns.
struct FlightSeen {
  uint32_t link;
  uint32_t number;
  double begin;
  double end;  // 0: not seen
  uint32_t who;
  uint32_t bytes;
  uint16_t op;
};

struct FlightSide {
  bool present = false;
  FlightHeader header{};
  std::map<std::pair<uint32_t, uint32_t>, FlightSeen> messages;  // by link and number
  uint32_t dropped = 0;                                          // records that cannot be true

  // The bytes of a FlightImage; anything else is not present.
  void Read(std::string_view bytes);
  // Ticks become ns, plus `offset`. What lies outside of [from, to] was never so.
  void Convert(double ns_per_tick, FlightClock zero, double offset, double from, double to);

 private:
  void Add(const FlightRecord& r, uint32_t link, uint32_t index, uint32_t capacity);
};

// ns per tick between two moments; 0 where they do not tell, or tell nonsense.
double TickLength(FlightClock from, FlightClock to);

}  // namespace causeway
