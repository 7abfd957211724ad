// SPDX-License-Identifier: Apache-2.0
// Whether work that may touch managed memory is under way, as far as this process can tell: everything that
// was sent and not yet waited for. Pages of managed memory (guest_lib/managed/areas.h) are given back before
// work starts, and kept for a short time only while there is any. Costs one load per message while the
// process has no such pages.
#pragma once
#include <atomic>
#include <cstdint>

#include "ivshmem_ring/protocol/call.h"

namespace causeway::guest {

struct Object;

namespace work {

// The number of the watch: not 0 while there are pages to care for, and another each time that there are some
// again. Kept by the pager, from before the first pages come until the last are gone. Nobody can hand the
// device memory of a watch before the call that made the memory has returned, so it may be looked at without
// an order of its own.
inline std::atomic<uint64_t> watch{0};
inline bool IsWatched() {
  return watch.load(std::memory_order_relaxed) != 0;
}

// Whether work that may touch them was sent and not waited for. Kept by MessageMark
// during a watch; when one begins, anything may be.
inline std::atomic<bool> under_way{true};

// What the pages do where work begins and ends. Set by pager.cc while the library is loaded; called only
// during a watch, by any thread. The caller may hold any lock but the one in work.cc: the thread that serves
// the pages takes none of this library's.
struct ManagedPages {
  // Everything that the program wrote is with the driver, and what the device writes from now on will be
  // seen.
  void (*give_back)() = nullptr;
  // The same for what was exchanged before; memory that nobody but the program has seen yet stays.
  void (*exchange)() = nullptr;
  // After everything was waited for.
  void (*restore)() = nullptr;
};
inline constinit ManagedPages managed_pages;

// A watch begins: of what was sent before nothing is known. Pages may come from then on.
void BeginWatch();
// The last pages are gone; what is under way concerns nobody.
void EndWatch();

// What the message being written names; only while watched. `context`: the stream's own; 0: it has none.
// `blocking`: it and the legacy stream wait for each other.
void NameStream(WireHandle stream, WireHandle context, bool blocking);
void NameEvent(WireHandle event);
// Several streams, or it is not known which.
inline constexpr WireHandle kSeveral = ~WireHandle{0};

// On the device the message may record events that it does not name.
void NameUnknownEvents();

// A wait or query whose end no answer of the host's tells: a word of the GPU's does, or it is known already.
// To the pages it is what an answer would be (MessageMark).
class QuietWait {
 public:
  enum class Subject : uint8_t { kNothing, kStream, kLegacyStream, kEvent, kContext };
  // Before its end is looked for, and before what tells the end is posted. `object`: the stream, the event,
  // or the context, also for its legacy stream.
  void Begin(Subject subject, const Object* object) {
    watch_ = watch.load(std::memory_order_relaxed);
    if (watch_ != 0) BeginWatched(subject, object);
  }
  // A word told the end. Before anybody is told of that, so that whoever knows it finds what the device wrote
  // at the next look at a page.
  void Ended() {
    if (watch_ != 0 && under_way.load()) EndedWatched();
  }
  // It had ended before, as somebody was told already.
  void WasOver() {
    if (watch_ != 0 && under_way.load()) WasOverWatched();
  }

 private:
  void BeginWatched(Subject subject, const Object* object);
  void EndedWatched();
  void WasOverWatched();
  bool NoteDone() const;

  uint64_t watch_ = 0;  // 0: begun while there was none
  Subject subject_ = Subject::kNothing;
  WireHandle handle_ = 0;
  uint64_t sent_before_ = 0;  // all work up to there was sent before it
};

}  // namespace work

// Accompanies one message from before it is written until its answer was taken. It counts in the watch in
// which it was begun, and in no other: what pages there are later it cannot touch.
class MessageMark {
 public:
  MessageMark() = default;
  ~MessageMark();
  MessageMark(const MessageMark&) = delete;
  MessageMark& operator=(const MessageMark&) = delete;

  // A message is about to be written: forgets what the last one named.
  void Begin() {
    watch_ = work::watch.load(std::memory_order_relaxed);
    if (watch_ != 0) Forget();
  }
  // Before anything of the message is visible to the host. It may start work: pages are given back.
  // `apart`: it is a copy with no managed memory on either side. That is no work which anybody must wait for
  // before he looks at a page; but what was written to pages before it arrives before it. A mark writes a
  // word of the region's alone, and what waits for that is a QuietWait.
  void Start(Op op, bool apart = false) {
    if (watch_ != 0 && op != Op::kMark) StartWatched(op, apart);
  }
  // The message is written, in that context: what it named is known. Before it is visible to the host.
  void Named(WireHandle context) {
    if (op_ != Op::kOpen) NamedWatched(context);
  }
  // Whatever anybody sends from now on comes after it.
  void Sent() {
    if (counted_) SentWatched();
  }
  // Its answer has come.
  void Answered(bool success) { succeeded_ = success; }
  // The call is over: what was fetched before is out of date if the answer was waited for.
  void Finish() {
    if (op_ != Op::kOpen) FinishWatched();
  }

 private:
  void Forget();
  bool IsOfThisWatch() const;
  void StartWatched(Op op, bool apart);
  void NamedWatched(WireHandle context);
  void SentWatched();
  void NoteAllDone(Op op);
  void FinishWatched();

  uint64_t watch_ = 0;  // 0: begun while there was none
  Op op_ = Op::kOpen;   // kOpen: nothing to do
  bool counted_ = false;
  bool succeeded_ = false;
  WireHandle context_ = 0, stream_ = 0, event_ = 0;  // what it named
  bool blocking_ = false;                            // that stream
  uint64_t sent_before_ = 0;                         // all work up to there was sent before it
  uint64_t number_ = 0;                              // its own, if it is work
  bool alone_ = false;                               // nobody else has sent some to its stream meanwhile
};

}  // namespace causeway::guest
