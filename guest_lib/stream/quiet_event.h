// SPDX-License-Identifier: Apache-2.0
// Blocking events that interrupt nobody. A record of an event made with CU_EVENT_BLOCKING_SYNC ends in an
// interrupt of the GPU's, which wakes a thread of the driver's, whether anybody waits for it or not: 11 to 24
// us of processor time on a GPU host. Where waits are met by a word that the GPU writes (Mark::AwaitEvent)
// nobody needs that. So an event whose last waits were is recorded in a stand-in from then on, an ordinary
// event on the host, and in its own again when the host had to be asked: its driver wakes whoever waits.
//
// Messages name the one of the two that was recorded last, so each has all that the program can ask for. That
// changes only with a record that is posted, never while a stream captures, and no more once the event was
// named by what may record it, or wait for it, at any time later: a graph, a launch's attribute.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <mutex>

#include "guest_lib/session/handles.h"

namespace causeway::guest {

// Around a posted record: decides which of the two it is. Of two threads' records of one event the later one
// decides.
class RecordPlace {
 public:
  explicit RecordPlace(Object* event);

 private:
  std::unique_lock<std::mutex> lock_;
};

// How a wait that was to cost no processor time ended: by a word, or by the host's answer.
void NoteBlockingWait(Object* event, bool by_word);
// Waits for the host's answer. The driver would spin for a stand-in, so it is asked now and then.
CUresult AskForEvent(CUevent event);
// Null if it has none. For who destroys the event.
CUevent TakeStandIn(CUevent event);

}  // namespace causeway::guest
