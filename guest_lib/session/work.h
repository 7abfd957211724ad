// SPDX-License-Identifier: Apache-2.0
// Whether work that may touch managed memory is in flight, as far as this process can tell: everything that
// was sent and not yet waited for. Pages of managed memory (guest_lib/managed/areas.h) are given back before
// work starts, and are kept for a short time only while any is in flight. This costs one load for each
// message while the process has no such pages. Any thread may call these functions.
#pragma once
#include <atomic>
#include <cstdint>

#include "ivshmem_ring/protocol/handle.h"
#include "ivshmem_ring/protocol/operation.h"

namespace causeway::guest {

struct Object;

namespace work {

// The number of the present watch. A watch is the time in which the process has such pages: the pager begins
// it before the first pages come and ends it after the last are gone. Each watch has another number; 0: there
// is none. The program cannot hand memory of a watch to the device before the call that made the memory has
// returned, so the number may be loaded without a memory order.
inline std::atomic<uint64_t> watch{0};
inline bool IsWatched() {
  return watch.load(std::memory_order_relaxed) != 0;
}

// Whether work that may touch the pages was sent and not waited for. MessageMark keeps it during a watch;
// when a watch begins, it is assumed.
inline std::atomic<bool> under_way{true};

// What the pages do where work begins and ends. Set by pager.cc while the library is loaded; called only
// during a watch, by any thread. The caller may hold any lock but the one in work.cc: the thread that serves
// the pages takes none of this library's.
struct ManagedPages {
  // Gives all pages back: everything that the program wrote goes to the driver, and the program will see what
  // the device writes from now on.
  void (*give_back)() = nullptr;
  // The same, but for memory that only the program has used yet.
  void (*exchange)() = nullptr;
  // To be called after everything was waited for: makes variables accessible again.
  void (*restore)() = nullptr;
};
inline constinit ManagedPages managed_pages;

// Begins a watch. Nothing is known of what was sent before. Pages may come from then on.
void BeginWatch();
// Ends the watch, when the last pages are gone.
void EndWatch();

// State what the message that the calling thread writes names; only during a watch. `context` is the stream's
// own; 0: it has none. `blocking`: it and the legacy stream wait for each other.
void NameStream(WireHandle stream, WireHandle context, bool blocking);
void NameEvent(WireHandle event);
// Stands for several streams, or for streams that are not known.
inline constexpr WireHandle kSeveral = ~WireHandle{0};

// States that the message may record events on the device that it does not name.
void NameUnknownEvents();

// A wait or query that ends without an answer of the host's: by a fence value, or because its end is known
// already. For the pages it has the effect of such an answer (MessageMark).
class QuietWait {
 public:
  enum class Subject : uint8_t { kNothing, kStream, kLegacyStream, kEvent, kContext };
  // To be called before the end is looked for, and before a fence is posted. `object`: the stream, the event,
  // or the context, also for its legacy stream.
  void Begin(Subject subject, const Object* object) {
    watch_ = watch.load(std::memory_order_relaxed);
    if (watch_ != 0) BeginWatched(subject, object);
  }
  // To be called when a fence value has shown the end, before the program can learn of it: then the program
  // finds what the device wrote at its next look at a page.
  void Ended() {
    if (watch_ != 0 && under_way.load()) EndedWatched();
  }
  // To be called when the end is known already, because the program was told of it before.
  void WasOver() {
    if (watch_ != 0 && under_way.load()) WasOverWatched();
  }

 private:
  void BeginWatched(Subject subject, const Object* object);
  void EndedWatched();
  void WasOverWatched();
  bool NoteDone() const;

  uint64_t watch_ = 0;  // the watch in which it began; 0: none
  Subject subject_ = Subject::kNothing;
  WireHandle handle_ = 0;
  uint64_t sent_before_ = 0;  // all work up to there was sent before it
};

}  // namespace work

// Accompanies one message from before it is written until its answer was taken. It counts only in the watch
// in which it was begun, because it cannot touch pages that came later. It belongs to one thread, which calls
// the functions in their order.
class MessageMark {
 public:
  MessageMark() = default;
  ~MessageMark();
  MessageMark(const MessageMark&) = delete;
  MessageMark& operator=(const MessageMark&) = delete;

  // Called before the message is written: forgets what the last one named.
  void Begin() {
    watch_ = work::watch.load(std::memory_order_relaxed);
    if (watch_ != 0) Forget();
  }
  // Before anything of the message is visible to the host. It may start work: pages are given back.
  // `apart`: it is a copy with no managed memory on either side. That is no work which anybody must wait for
  // before he looks at a page; but what was written to pages before it arrives before it.
  // A mark is sent by every wait that a fence ends, and takes no lock here.
  void Start(Op op, bool apart = false) {
    if (watch_ != 0 && op != Op::kMark) StartWatched(op, apart);
  }
  // Called when the message is written, for that context, and before the host can see it: what it names is
  // known now.
  void Named(WireHandle context) {
    if (op_ != Op::kOpen) NamedWatched(context);
  }
  // Called when the message is sent: what any thread sends from now on comes after it.
  void Sent() {
    if (counted_) SentWatched();
  }
  // Called when the answer has come.
  void Answered(bool success) { succeeded_ = success; }
  // Called when the call is over. If it was synchronous, pages that were fetched before are out of date.
  void Finish() {
    if (op_ != Op::kOpen) FinishWatched();
  }

 private:
  void Forget();
  bool IsOfThisWatch() const;
  void StartWatched(Op op, bool apart);
  void NamedWatched(WireHandle context);
  void SentWatched();
  void NoteAllDone(Traits done);
  void FinishWatched();

  uint64_t watch_ = 0;  // the watch in which it began; 0: none
  Op op_ = Op::kOpen;   // kOpen: there is nothing to do
  bool counted_ = false;
  bool succeeded_ = false;
  WireHandle context_ = 0, stream_ = 0, event_ = 0;  // what it names
  bool blocking_ = false;                            // whether that stream is a blocking one
  uint64_t sent_before_ = 0;                         // all work up to this number was sent before it
  uint64_t number_ = 0;                              // its own number, if it is work
  bool alone_ = false;                               // no other thread has sent work to its stream meanwhile
};

}  // namespace causeway::guest
