// SPDX-License-Identifier: Apache-2.0
// Which event of the host a message names for an event of the program: the event itself, or its shadow event
// if that was recorded last (quiet_event.h). Any thread may call these functions; they take no lock.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

#include "guest_lib/session/handles.h"

namespace causeway::guest {

// Bits of Progress::place.
inline constexpr uint8_t kStandIn = 1;  // the shadow event was recorded last
inline constexpr uint8_t kForGood = 2;  // the other bit does not change any more

// The event that messages name. `for_good`: it must stay the same one from now on.
inline const Object* OnHost(const Object* event, bool for_good) {
  if ((event->flags & CU_EVENT_BLOCKING_SYNC) == 0) return event;
  Progress& progress = const_cast<Object*>(event)->progress;
  const uint8_t place = for_good ? progress.place.fetch_or(kForGood) : progress.place.load();
  if ((place & kStandIn) == 0) return event;
  const Object* stand_in = progress.stand_in.load(std::memory_order_acquire);  // partner: MakeStandIn
  return stand_in != nullptr ? stand_in : event;
}
// The program's event for an event that a message named.
inline Object* OfProgram(Object* event) {
  auto* owner = static_cast<Object*>(event->detail);
  return owner != nullptr && owner->progress.stand_in.load(std::memory_order_acquire) == event ? owner
                                                                                               : event;
}

}  // namespace causeway::guest
