// SPDX-License-Identifier: Apache-2.0
// What this process has submitted to the device, and what of it is known to be done, so that a completion
// query (guest_lib/stream/inquiry.h) about work that is done needs no message.
//
// There are two counts. Posted records count by their sequence in the submission queue; synchronous calls
// raise `calls_` when they begin and when they end. A wait or query that succeeded shows that its subject (a
// stream, an event or a context) had done all that was sent before it, in both counts. The subject is still
// done as long as nothing was sent since that may work there. Records say themselves where they work (Works).
// In case of doubt a record may work anywhere, and so may any call but those that leave nothing behind
// (LeavesNoWork).
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <atomic>
#include <cstdint>

#include "guest_lib/session/handles.h"
#include "ivshmem_ring/protocol/operation.h"

namespace causeway::guest {

// Where one posted record works. Without a stream it may work anywhere.
struct Works {
  Object* stream = nullptr;
  Object* event = nullptr;          // the event that it records
  Object* awaited_event = nullptr;  // the event for which it waits
  bool is_copy = false;             // a synchronous copy that is posted: once it is executed it is done
  bool apart = false;               // a copy with no managed memory on either side (MessageMark)
};

struct Stamp {
  uint64_t posts = 0;  // how many were sent up to some moment
  uint64_t calls = 0;
};

// What the session has submitted. Any thread.
class alignas(64) Activity {
 public:
  // Notes a posted record. Called with the main lock held, before the record of that sequence is published.
  void NotePost(Op op, const Works& works, uint64_t sequence);
  // Notes a synchronous call. Called before it is sent and after its answer.
  void NoteCall() { calls_.fetch_add(1); }

  // NoteAnswer is called when the host has answered a query; IsTrusted says whether that was not long ago.
  void NoteAnswer();
  bool IsTrusted() const;

  // Whether the event was recorded behind all other work of its stream, so that a fence posted there now
  // stands for the event. *stream is that stream.
  bool EndsItsStream(const Object& event, const Object** stream) const;

  // What was sent until now. `posts` is the transport's main_sequence().
  Stamp Now(uint64_t posts) const { return {posts, calls_.load()}; }
  // The number of posts up to the newest one that is not a synchronous copy.
  uint64_t beyond_copies() const { return beyond_copies_.load(std::memory_order_acquire); }
  // The number of posts up to the newest one that may work anywhere.
  uint64_t elsewhere() const { return elsewhere_.load(std::memory_order_acquire); }

 private:
  std::atomic<uint64_t> calls_{1};
  std::atomic<uint64_t> elsewhere_{0};
  std::atomic<uint64_t> beyond_copies_{0};
  std::atomic<uint64_t> answered_ms_{0};
};

}  // namespace causeway::guest
