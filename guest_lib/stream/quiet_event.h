// SPDX-License-Identifier: Apache-2.0
// Shadow events: how blocking events interrupt no thread. A record of an event that was made with
// CU_EVENT_BLOCKING_SYNC ends in an interrupt of the GPU's, which costs processor time in a thread of the
// driver's, whether or not a thread waits for the event (docs/measurements.md). Where waits are ended by
// fence values (Mark::AwaitEvent), the interrupt is of no use. So an event whose last waits were ended that
// way is recorded in its shadow event from then on, an ordinary event on the host. When the host had to be
// asked, the next record is of the event itself again, since the host's driver then wakes the waiting thread.
//
// Messages name the one of the two that was recorded last, so the program sees what it would see of one
// event. Which one it is changes only with a posted record, never while a stream captures, and no longer once
// a graph or a launch's attribute has named the event, which may record it or wait for it at any later time.
// Any thread may call these functions.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <mutex>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/handles.h"

namespace causeway::guest {

// Decides which of the two a posted record is of. It lives around the post and holds a lock meanwhile, so
// that of two threads that record one event the later one decides. That lock is taken before the main lock.
class RecordPlace {
 public:
  explicit RecordPlace(Object* event);

 private:
  std::unique_lock<Mutex<Lock::kEventRecords>> lock_;
};

// To be called when a no-spin wait for the event has ended, by a fence value or by the host's answer.
void NoteBlockingWait(Object* event, bool by_word);
// Waits for the event by the host's answer, and returns what cuEventSynchronize does. Because the driver
// would spin for a shadow event, that is queried again and again, with sleeps between.
CUresult AskForEvent(CUevent event);
// The shadow event of an event that is to be destroyed; the caller destroys it too. Null: there is none.
CUevent TakeStandIn(CUevent event);

}  // namespace causeway::guest
