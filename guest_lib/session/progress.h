// SPDX-License-Identifier: Apache-2.0
// What this process has handed to the device, and what of it is known to be done: whoever asks again for
// what is done needs no message.
//
// Two clocks. Posted records count by the main ring's sequence; calls that are waited for move `calls_` when
// they begin and when they end. A wait or query that succeeded shows that its subject had done all that was
// sent before it, in both counts. Its subject is still done as long as nothing was sent since that may work
// there: that is what the records themselves say (Works), and in case of doubt any record, and any call but
// those that leave nothing behind (LeavesNoWork), may work anywhere.
//
// A session that is lost, and a fault of another's making, show within some 20 ms: after so long without an
// answer of the host's it is asked again.
//
// Never answered here: events that other processes can record, and anything while a stream captures. Pages of
// managed memory come and go with waits, by messages or not (work::QuietWait).
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <atomic>
#include <cstdint>

#include "guest_lib/session/handles.h"
#include "guest_lib/session/work.h"
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
// On that stream alone. The legacy stream holds up others, so work in it counts as work anywhere.
Works WorksOn(CUstream stream);

bool LeavesNoWork(Op op);

class Session;

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

// One question after a stream, an event or a context:
//   Inquiry inquiry = Inquiry::OfStream(stream);
//   CUresult result;
//   if (inquiry.Answer(&result)) return result;
//   return inquiry.Note(Wait<...>());
class Inquiry {
 public:
  static Inquiry OfStream(CUstream stream);
  static Inquiry OfEvent(CUevent event);
  static Inquiry OfContext();
  // What a synchronous copy waits for: the stream, but not earlier copies, which are executed before it.
  static Inquiry BeforeCopy(CUstream stream);

  // True if the host need not be asked: done, or an error that is known already.
  bool Answer(CUresult* result);
  // Whether the subject is still known to be done, after Answer or Note said so.
  bool IsDone() const;
  // The host's answer. Returns its argument.
  CUresult Note(CUresult result) { return Note(result, 0); }
  // What a word of the GPU's told: all up to so many posts is done; 0: all that was sent before Begin.
  CUresult NoteWord(CUresult result, uint64_t posts);
  // For a call that waits for its subject and is worth sending anyway: Begin, the call, Note.
  void Begin();
  // The same after BeforeCopy, for a copy made by one call. The device may still be taking its bytes, so that
  // nothing but copies may count on its end.
  CUresult NoteCopy(CUresult result);

 private:
  using Subject = work::QuietWait::Subject;
  // `session` is what the caller found: another thread may be ending the process.
  bool IsDone(Session& session) const;
  void Is(Subject subject, Object* object) {
    waited_ = subject;
    object_ = object;
  }
  CUresult Note(CUresult result, uint64_t posts);

  Progress* subject_ = nullptr;        // null: nothing is known of it
  const Progress* context_ = nullptr;  // of the context that a stream belongs to
  bool everything_ = false;            // the subject is done only when all that was sent is
  const Progress* legacy_ = nullptr;   // before a copy: of the stream proper
  Stamp stamp_;
  Subject waited_ = Subject::kNothing;
  const Object* object_ = nullptr;  // as QuietWait::Begin
  work::QuietWait wait_;
};

}  // namespace causeway::guest
