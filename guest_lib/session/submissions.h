// SPDX-License-Identifier: Apache-2.0
// The completion engine: what this process has submitted to the device, and what of it is known to be done.
// Each message tells it once what it submits (Submission), and each end is told once (Submissions::NoteDone).
// From that it answers two questions (docs/waiting.md says why they need counts of two kinds):
//   - Is this stream, event or context known to be done? Then a completion query (guest_lib/stream/inquiry.h)
//     needs no message. A few counters that are always kept answer it, without a lock.
//   - Is any work in flight that may touch managed memory? The pages of managed memory
//     (guest_lib/managed/areas.h) are given back before work starts, and are lent for a short time only while
//     any is in flight. Lists under a lock answer it, during a watch alone: while the process has such pages.
//     Without them it costs one load for each message.
// Any thread may call these functions.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "guest_lib/session/context.h"
#include "ivshmem_ring/protocol/call.h"

namespace causeway::guest {

// What one message submits. Its sender states it before the message is sent, and keeps it until then.
struct Submission {
  Object* stream = nullptr;        // the stream that the message names; null: the legacy one, or none
  Object* event = nullptr;         // the event that it names
  bool stays_in_stream = false;    // it works in that stream, with that event, and nowhere else
  bool several_streams = false;    // it names more than one, or streams that are not known
  bool records_any_event = false;  // it may record events on the device that it does not name
  bool is_copy = false;            // a synchronous copy that is posted: once it is executed it is done
  bool is_apart = false;           // a copy with no managed memory on either side

  void Name(Object* named) {
    several_streams |= stream != nullptr && stream != named;
    stream = named;
  }
};
inline constexpr Submission kNothingNamed{};

// What a query or a wait is about.
struct Subject {
  enum class Kind : uint8_t {
    kNothing,
    kStream,
    kLegacyStream,  // of a context, which is the object
    kCopies,        // what synchronous copies in a context's legacy stream wait for: all but earlier ones
    kEvent,
    kContext
  };
  Kind kind = Kind::kNothing;
  Object* object = nullptr;
};

namespace work {

// The number of the present watch. A watch is the time in which the process has pages of managed memory: the
// pager begins it before the first pages come and ends it after the last are gone. Each watch has another
// number; 0: there is none. The program cannot hand memory of a watch to the device before the call that made
// the memory has returned, so the number may be loaded without a memory order.
inline std::atomic<uint64_t> watch{0};
inline bool IsWatched() {
  return watch.load(std::memory_order_relaxed) != 0;
}

// Whether work that may touch the pages was sent and not waited for. When a watch begins, it is assumed.
inline std::atomic<bool> under_way{true};

// What the pages do where work begins and ends. Set by pager.cc while the library is loaded; called only
// during a watch, by any thread. The caller may hold any lock but the one in submissions.cc and Lock::kComparedBytes,
// the only one of this library's that the thread that serves the pages takes. No holder of that one touches a watched page.
struct ManagedPages {
  // Gives all pages back: everything that the program wrote goes to the driver, and the program will see what
  // the device writes from now on.
  void (*give_back)() = nullptr;
  // The same, but for memory that only the program has used yet. `read_compared`: the program also gets what the device has changed of
  // compared bytes (guest_lib/managed/compared_bytes.h), because it is about to learn that work has ended, or a function of its own runs
  // behind that work.
  void (*exchange)(bool read_compared) = nullptr;
  // To be called after everything was waited for: makes variables accessible again.
  void (*restore)() = nullptr;
  // Whether the address lies in an allocation of migrating memory. Also without a watch.
  bool (*holds)(uint64_t address) = nullptr;
};
inline constinit ManagedPages managed_pages;

inline std::atomic<uint64_t> sent{0};  // work of all watches so far, numbered; submissions.cc counts it

// Begins a watch. Nothing is known of what was sent before. Pages may come from then on.
void BeginWatch();
// Ends the watch, when the last pages are gone.
void EndWatch();

}  // namespace work

// What was sent up to some moment.
struct Stamp {
  uint64_t posts = 0;  // records of the submission queue
  uint64_t calls = 0;  // beginnings and ends of synchronous calls that may leave work
  uint64_t watch = 0;  // the watch then; 0: there was none
  uint64_t work = 0;   // of that watch
};

// Accompanies one message from before it is written until its answer was taken. It counts as work only in the
// watch in which it was begun, because it cannot touch pages that came later. It belongs to one thread, which
// calls the functions in their order.
class MessageInFlight {
 public:
  MessageInFlight() = default;
  ~MessageInFlight() {
    if (counted_) NeverSent();
  }
  MessageInFlight(const MessageInFlight&) = delete;
  MessageInFlight& operator=(const MessageInFlight&) = delete;

  // Before anything of the message is visible to the host. It may start work: pages are given back. What
  // `is_apart` nobody must wait for before looking at a page; but what was written to pages before it arrives
  // before it. A fence writes a word of the region's alone.
  void Begin(Op op, bool is_apart = false) {
    watch_ = work::watch.load(std::memory_order_relaxed);
    if (watch_ != 0 && op != Op::kMark) BeginWatched(op, is_apart);
  }
  // When the message is sent: what any thread sends from now on comes after it.
  void Sent() {
    if (counted_) SentWatched();
  }
  // When an answer has come.
  void Answered(bool success) { succeeded_ = success; }
  // When the call is over. If it was synchronous, pages that were fetched before are out of date.
  void Finish() {
    if (op_ != Op::kOpen) FinishWatched();
  }

 private:
  friend class Submissions;
  // When the message is written, for that context.
  void Name(const Submission& submission, WireHandle context) {
    if (op_ != Op::kOpen) NameWatched(submission, context);
  }
  bool IsOfThisWatch() const;
  void BeginWatched(Op op, bool is_apart);
  void NameWatched(const Submission& submission, WireHandle context);
  void SentWatched();
  void NeverSent();
  void FinishWatched();

  uint64_t watch_ = 0;  // the watch in which it began; 0: none
  Op op_ = Op::kOpen;   // kOpen: there is nothing to do
  bool counted_ = false;
  bool succeeded_ = false;
  bool blocking_ = false;                            // whether its stream is a blocking one
  bool alone_ = false;                               // no other thread has sent work to its stream meanwhile
  WireHandle context_ = 0, stream_ = 0, event_ = 0;  // what it names
  uint64_t sent_before_ = 0;                         // all work up to this number was sent before it
  uint64_t number_ = 0;                              // its own number, if it is work
};

class alignas(64) Submissions {
 public:
  // Tells of a message when it is written, for that context, and before the host can see it. `sequence` is a
  // posted record's number; the main lock is held.
  void NotePost(MessageInFlight& message, Op op, const Submission& submission, WireHandle context,
                uint64_t sequence) {
    message.Name(submission, context);
    if (submission.is_copy || op == Op::kMark) return;
    const uint64_t posts = sequence + 1;
    beyond_copies_.store(posts, std::memory_order_release);
    Object* stream = submission.stays_in_stream ? submission.stream : nullptr;
    if (submission.event != nullptr) NoteRecord(op, *submission.event, stream, posts);
    if (stream != nullptr) {
      stream->progress.work.store(posts, std::memory_order_release);
    } else if (!LeavesNoWork(op)) {
      elsewhere_.store(posts, std::memory_order_release);
    }
  }
  // True: the call may leave work, so NoteCallEnds is to be called after its answer.
  bool NoteCall(MessageInFlight& message, Op op, const Submission& submission, WireHandle context) {
    message.Name(submission, context);
    if (LeavesNoWork(op)) return false;
    calls_.fetch_add(1);
    return true;
  }
  void NoteCallEnds() { calls_.fetch_add(1); }

  // What was sent until now. `posts` is the transport's main_sequence().
  Stamp Now(uint64_t posts) const {
    return {posts, calls(), work::watch.load(std::memory_order_relaxed),
            work::sent.load(std::memory_order_acquire)};  // partner: SentWatched
  }
  uint64_t calls() const { return calls_.load(); }
  // Whether nothing was sent that may work there since the subject was seen done. `main_sequence` asks the
  // transport for it.
  template <class MainSequence>
  bool IsDone(const Subject& subject, const MainSequence& main_sequence) const;
  // Takes that the subject had done all that was sent up to the stamp. `by_fence`: the program can learn of it
  // only after this, so pages that it was lent are exchanged in any case. Otherwise an answer of the host's has
  // done that, or somebody was told before; they are exchanged if nothing else is in flight.
  void NoteDone(const Subject& subject, const Stamp& stamp, bool by_fence = false);
  // The same where no count tells more than before: the subject is known to be done.
  static void NoteDoneAgain(const Subject& subject, const Stamp& stamp) {
    if (stamp.watch != 0) EndWatched(subject, stamp, false);
  }
  // Whether the event was recorded behind all other work of its stream, so that a fence posted there now
  // stands for the event. *stream is that stream.
  bool EndsItsStream(const Object& event, const Object** stream) const;

  // NoteAnswer is called when the host has answered a query; IsTrusted says whether that was not long ago.
  void NoteAnswer();
  bool IsTrusted() const;

 private:
  // If the post of that number records the event; in the stream, or null.
  void NoteRecord(Op op, Object& event, const Object* stream, uint64_t posts);
  static void EndWatched(const Subject& subject, const Stamp& stamp, bool by_fence);

  std::atomic<uint64_t> calls_{1};
  std::atomic<uint64_t> elsewhere_{0};      // posts up to the newest one that may work anywhere
  std::atomic<uint64_t> beyond_copies_{0};  // posts up to the newest one that is not a synchronous copy
  std::atomic<uint64_t> answered_ms_{0};
};
inline constinit Submissions submissions;

template <class MainSequence>
bool Submissions::IsDone(const Subject& subject, const MainSequence& main_sequence) const {
  Object* object = subject.object;
  uint64_t sent = 0;  // posts that may work there
  const auto covers = [calls = calls(), &sent](const Progress& progress) {
    return progress.done_calls.load(std::memory_order_acquire) == calls &&
           progress.done_posts.load(std::memory_order_acquire) >= sent;
  };
  switch (subject.kind) {
    case Subject::Kind::kNothing:
      return false;
    case Subject::Kind::kStream:
    case Subject::Kind::kEvent:
      sent = std::max(elsewhere_.load(std::memory_order_acquire),
                      object->progress.work.load(std::memory_order_acquire));
      return covers(object->progress) || (subject.kind == Subject::Kind::kStream &&
                                          object->context != nullptr && covers(object->context->progress));
    case Subject::Kind::kContext:
      sent = main_sequence();
      return covers(object->progress);
    case Subject::Kind::kLegacyStream:
      sent = main_sequence();
      return covers(ContextOf(object).legacy_stream) || covers(object->progress);
    case Subject::Kind::kCopies:
      sent = beyond_copies_.load(std::memory_order_acquire);
      return covers(ContextOf(object).copies) || covers(ContextOf(object).legacy_stream) ||
             covers(object->progress);
  }
  return false;
}

}  // namespace causeway::guest
