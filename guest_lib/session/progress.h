// SPDX-License-Identifier: Apache-2.0
// What this process has handed to the device, and what of it is known to be done: whoever asks again for
// what is done needs no message (guest_lib/stream/inquiry.h).
//
// Two clocks. Posted records count by the main ring's sequence; calls that are waited for move `calls_` when
// they begin and when they end. A wait or query that succeeded shows that its subject had done all that was
// sent before it, in both counts. Its subject is still done as long as nothing was sent since that may work
// there: that is what the records themselves say (Works), and in case of doubt any record, and any call but
// those that leave nothing behind (LeavesNoWork), may work anywhere.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <atomic>
#include <cstdint>

#include "guest_lib/session/handles.h"
#include "ivshmem_ring/protocol/call.h"

namespace causeway::guest {

// What one posted record does. Without a stream: anything, anywhere.
struct Works {
  Object* stream = nullptr;
  Object* event = nullptr;  // recorded
  Object* awaited_event = nullptr;
  bool is_copy = false;  // a synchronous one: nobody waits for it, and once executed it is done
  bool apart = false;    // a copy with no managed memory on either side (MessageMark)
};

bool LeavesNoWork(Op op);

struct Stamp {
  uint64_t posts = 0;
  uint64_t calls = 0;
};

// Of the session.
class alignas(64) Activity {
 public:
  // With the main lock, before the record of that sequence is published.
  void NotePost(Op op, const Works& works, uint64_t sequence);
  // Before a call is sent and after its answer.
  void NoteCall() { calls_.fetch_add(1); }

  // The host has answered an inquiry; that was not long ago.
  void NoteAnswer();
  bool IsTrusted() const;

  // Whether the event was recorded behind all other work of its stream, so that what is posted there now is
  // done when the event is.
  bool EndsItsStream(const Object& event, const Object** stream) const;

  // What was sent until now; `posts`: the transport's main_sequence().
  Stamp Now(uint64_t posts) const { return {posts, calls_.load()}; }
  // Posts up to the newest that is more than a copy that was posted because nothing was left to wait for.
  uint64_t beyond_copies() const { return beyond_copies_.load(std::memory_order_acquire); }
  // Posts up to the newest that may work anywhere.
  uint64_t elsewhere() const { return elsewhere_.load(std::memory_order_acquire); }

 private:
  std::atomic<uint64_t> calls_{1};
  std::atomic<uint64_t> elsewhere_{0};
  std::atomic<uint64_t> beyond_copies_{0};
  std::atomic<uint64_t> answered_ms_{0};
};

}  // namespace causeway::guest
