// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/session/work.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/handles.h"

namespace causeway::guest {
namespace {

using work::kSeveral;
constexpr size_t kMaxEvents = 4096;   // remembered; of others nothing follows
constexpr size_t kMaxStreams = 1024;  // told apart

// Work is numbered when all that is sent from then on comes after it.
struct StreamMark {
  WireHandle context;
  bool blocking;
  uint64_t last;          // the newest work on it
  uint64_t launch_after;  // of a blocking stream: all up to there was sent before its newest launch
};
// What one event stands for: all work up to `last` on one stream.
struct EventMark {
  WireHandle stream;
  uint64_t last;
};

// Guarded by the mutex, as are changes of `work::under_way` and `work::watch`. No message is sent and no page
// touched while it is held.
struct Tracked {
  Mutex<Lock::kWork> mutex;
  uint64_t watches = 0;           // so far
  std::atomic<uint64_t> sent{0};  // work, so far
  uint64_t starting = 0;          // messages of this watch that may be work and have no number yet
  // Streams with work that nobody has waited for. Work on a context's legacy stream counts under the context,
  // and where it went to several under kSeveral.
  std::map<WireHandle, StreamMark> streams;
  std::map<WireHandle, EventMark> events;
};
Tracked& tracked = *new Tracked;  // never destroyed

thread_local WireHandle named_stream = 0, named_context = 0, named_event = 0;
thread_local bool named_blocking = false;

using namespace traits;

// The caller holds the mutex.
void NoteDone(WireHandle stream, uint64_t last) {
  const auto found = tracked.streams.find(stream);
  if (found == tracked.streams.end() || found->second.last > last) return;
  const StreamMark mark = found->second;
  tracked.streams.erase(found);
  // A launch on a blocking stream waited for what the legacy stream had.
  const auto legacy = tracked.streams.find(mark.context);
  if (mark.blocking && mark.context != kSeveral && legacy != tracked.streams.end() &&
      legacy->second.last <= mark.launch_after)
    tracked.streams.erase(legacy);
}

// What waited in a context's legacy stream waited for all blocking ones. The caller holds the mutex.
void NoteBlockingDone(WireHandle context, uint64_t last) {
  std::erase_if(tracked.streams, [=](const auto& entry) {
    return entry.second.blocking && entry.second.context == context && entry.second.last <= last;
  });
}

// The caller holds the mutex.
void NoteEventDone(WireHandle event, uint64_t last) {
  const auto found = tracked.events.find(event);
  if (found != tracked.events.end() && found->second.stream != kSeveral)
    NoteDone(found->second.stream, std::min(found->second.last, last));
}

// The caller holds the mutex.
void NoteContextDone(WireHandle context, uint64_t last) {
  std::erase_if(tracked.streams, [=](const auto& entry) {
    return entry.second.context == context && entry.second.last <= last;
  });
}

// The caller holds the mutex, and has exchanged pages before.
void NothingIsUnderWay() {
  tracked.events.clear();
  work::under_way.store(false);
}

// The caller holds the mutex.
bool NothingLeft() {
  return tracked.streams.empty() && tracked.starting == 0;
}

void ForgetAll() {
  tracked.starting = 0;
  tracked.streams.clear();
  tracked.events.clear();
  work::under_way.store(true);
}

}  // namespace

void work::BeginWatch() {
  const std::lock_guard lock(tracked.mutex);
  ForgetAll();
  watch.store(++tracked.watches);
}

void work::EndWatch() {
  const std::lock_guard lock(tracked.mutex);
  watch.store(0);
  ForgetAll();
}

void work::NameStream(WireHandle stream, WireHandle context, bool blocking) {
  named_stream = named_stream == 0 || named_stream == stream ? stream : kSeveral;
  named_context = named_stream == stream ? context : kSeveral;
  named_blocking = blocking;
}

void work::NameEvent(WireHandle event) {
  named_event = event;
}

void work::NameUnknownEvents() {
  named_event = kSeveral;
}

MessageMark::~MessageMark() {
  if (!counted_) return;
  const std::lock_guard lock(tracked.mutex);  // the message was never sent
  if (IsOfThisWatch()) --tracked.starting;
}

void MessageMark::Forget() {
  named_stream = named_context = named_event = 0;
  named_blocking = false;
}

// The caller holds the mutex.
bool MessageMark::IsOfThisWatch() const {
  return watch_ == work::watch.load(std::memory_order_relaxed);
}

void MessageMark::StartWatched(Op op, bool apart) {
  if (apart) {
    if (work::under_way.load()) work::managed_pages.give_back();
    return;
  }
  {
    const std::lock_guard lock(tracked.mutex);
    if (!IsOfThisWatch()) return;
    op_ = op;
    succeeded_ = false;
    number_ = 0;
    sent_before_ = tracked.sent;
    if (counted_ || TraitsOf(op).Has(kNoWork | kAwaits)) return;
    ++tracked.starting;
    counted_ = true;
    // Before the pages are looked at: a page that becomes accessible after that look sees it (ManagedAreas).
    work::under_way.store(true);
  }
  work::managed_pages.give_back();
}

void MessageMark::NamedWatched(WireHandle context) {
  context_ = named_context != 0 ? named_context : context;
  if (TraitsOf(op_).Has(kRecordsOtherEvents)) named_event = kSeveral;
  stream_ = named_stream != 0 && named_stream != kLegacyStreamWire ? named_stream : context;
  event_ = named_event;
  blocking_ = named_blocking && stream_ == named_stream && stream_ != kSeveral;
  if (!counted_ || (event_ != kSeveral && !TraitsOf(op_).Has(kRecordsEvent))) return;
  // What the event stood for it stands for no more. Those that a graph or a launch records are not known.
  const std::lock_guard lock(tracked.mutex);
  event_ == kSeveral ? tracked.events.clear() : static_cast<void>(tracked.events.erase(event_));
}

void MessageMark::SentWatched() {
  const std::lock_guard lock(tracked.mutex);
  counted_ = false;
  if (!IsOfThisWatch()) return;
  --tracked.starting;
  if (TraitsOf(op_).Has(kLoadsCode)) return;
  number_ = ++tracked.sent;
  if (tracked.streams.size() >= kMaxStreams && !tracked.streams.contains(stream_)) stream_ = kSeveral;
  StreamMark& mark =
      tracked.streams.try_emplace(stream_, StreamMark{context_, blocking_, 0, 0}).first->second;
  if (mark.context != context_) mark.context = kSeveral;
  alone_ = mark.last <= sent_before_;
  mark.last = number_;
  if (blocking_ && TraitsOf(op_).Has(kAfterLegacyStream)) mark.launch_after = sent_before_;
  if (!TraitsOf(op_).Has(kRecordsEvent)) return;
  if (tracked.events.size() >= kMaxEvents) tracked.events.clear();
  tracked.events[event_] = {stream_, number_};
}

// What its success says is done. What kAwaitsOther names is not followed.
void MessageMark::NoteAllDone(Traits done) {
  if (done.Has(kAwaitsContext)) return NoteContextDone(context_, sent_before_);
  if (done.Has(kAwaitsEvent)) return NoteEventDone(event_, sent_before_);
  if (done.Has(kAwaitsStream) && stream_ != kSeveral) return NoteDone(stream_, sent_before_);
  if (!done.Has(kCopies) || stream_ == kSeveral || !alone_) return;
  NoteDone(stream_, number_);
  if (stream_ == context_) NoteBlockingDone(context_, sent_before_);
}

void MessageMark::FinishWatched() {
  const Traits done = TraitsOf(op_);
  if (done.Has(kNoWork) || !work::under_way.load() || (done.Has(kAwaits) && !succeeded_)) {
    op_ = Op::kOpen;
    return;
  }
  // First the pages: while work is said to be under way, none becomes one that is kept for long.
  work::managed_pages.exchange();
  {
    const std::lock_guard lock(tracked.mutex);
    op_ = Op::kOpen;
    if (!IsOfThisWatch()) return;
    if (succeeded_) NoteAllDone(done);
    if (!NothingLeft()) return;
    NothingIsUnderWay();
  }
  work::managed_pages.restore();
}

void work::QuietWait::BeginWatched(Subject subject, const Object* object) {
  subject_ = object != nullptr ? subject : Subject::kNothing;
  handle_ = object != nullptr ? WireOf(object) : 0;
  sent_before_ = tracked.sent.load(std::memory_order_acquire);  // partner: SentWatched
}

// False: something is left. The caller holds the mutex.
bool work::QuietWait::NoteDone() const {
  if (watch_ != watch.load(std::memory_order_relaxed)) return false;
  switch (subject_) {
    case Subject::kNothing:
      return false;
    case Subject::kStream:
      guest::NoteDone(handle_, sent_before_);
      break;
    case Subject::kLegacyStream:
      // Waiting for it means the blocking ones, as does a copy in it. A mark waits there where there are
      // none.
      guest::NoteDone(handle_, sent_before_);
      NoteBlockingDone(handle_, sent_before_);
      break;
    case Subject::kEvent:
      NoteEventDone(handle_, sent_before_);
      break;
    case Subject::kContext:
      NoteContextDone(handle_, sent_before_);
      break;
  }
  return NothingLeft();
}

void work::QuietWait::EndedWatched() {
  work::managed_pages.exchange();  // before it is said that nothing is under way, as in FinishWatched
  {
    const std::lock_guard lock(tracked.mutex);
    if (!NoteDone()) return;
    NothingIsUnderWay();
  }
  work::managed_pages.restore();
}

// Whoever was told of its end has exchanged pages; they need that again only if this ends the lending of
// them.
void work::QuietWait::WasOverWatched() {
  {
    const std::lock_guard lock(tracked.mutex);
    if (!NoteDone()) return;
  }
  EndedWatched();
}

}  // namespace causeway::guest
