// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/session/submissions.h"

#include <time.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "guest_lib/process/lock_order.h"

namespace causeway::guest {
namespace {

using namespace traits;
using Kind = Subject::Kind;

constexpr size_t kMaxEvents = 4096;   // remembered; of others nothing follows
constexpr size_t kMaxStreams = 1024;  // told apart
// Stands for several streams, or for streams that are not known; for events that are not known.
constexpr WireHandle kSeveral = ~WireHandle{0};

// So long after the host's last answer it is asked again, so that a program that only asks learns of a lost
// session, and of faults that are not its own.
constexpr uint64_t kTrustMs = 20;

// Of a few ms' resolution, for the price of a load.
uint64_t CoarseMs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1'000'000;
}

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
  uint64_t watches = 0;   // so far
  uint64_t starting = 0;  // messages of this watch that may be work and have no number yet
  // Streams with work that nobody has waited for. Work on a context's legacy stream counts under the context,
  // and where it went to several under kSeveral.
  std::map<WireHandle, StreamMark> streams;
  std::map<WireHandle, EventMark> events;
};
Tracked& tracked = *new Tracked;  // never destroyed

// The caller holds the mutex.
void NoteStreamDone(WireHandle stream, uint64_t last) {
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
    NoteStreamDone(found->second.stream, std::min(found->second.last, last));
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

// The caller holds the mutex.
bool MessageInFlight::IsOfThisWatch() const {
  return watch_ == work::watch.load(std::memory_order_relaxed);
}

void MessageInFlight::BeginWatched(Op op, bool is_apart) {
  if (is_apart) {
    if (work::under_way.load()) work::managed_pages.give_back();
    return;
  }
  {
    const std::lock_guard lock(tracked.mutex);
    if (!IsOfThisWatch()) return;
    op_ = op;
    succeeded_ = false;
    number_ = 0;
    sent_before_ = work::sent;
    if (counted_ || TraitsOf(op).Has(kNoWork | kAwaits)) return;
    ++tracked.starting;
    counted_ = true;
    // Before the pages are looked at: a page that becomes accessible after that look sees it (ManagedAreas).
    work::under_way.store(true);
  }
  work::managed_pages.give_back();
}

void MessageInFlight::NameWatched(const Submission& submission, WireHandle context) {
  const Object* stream = submission.stream;
  context_ = stream_ = context;
  if (submission.several_streams) {
    context_ = stream_ = kSeveral;
  } else if (stream != nullptr) {
    stream_ = WireOf(stream);
    if (stream->context != nullptr) context_ = WireOf(stream->context);
  }
  blocking_ = stream_ != kSeveral && stream != nullptr && (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
  const bool any_event = submission.records_any_event || TraitsOf(op_).Has(kRecordsOtherEvents);
  event_ = submission.event != nullptr ? WireOf(submission.event) : 0;
  if (!counted_ || !(any_event || TraitsOf(op_).Has(kRecordsEvent))) return;
  // What the event stood for it stands for no more. Those that a graph or a launch records are not known.
  const std::lock_guard lock(tracked.mutex);
  any_event ? tracked.events.clear() : static_cast<void>(tracked.events.erase(event_));
}

void MessageInFlight::SentWatched() {
  const std::lock_guard lock(tracked.mutex);
  counted_ = false;
  if (!IsOfThisWatch()) return;
  --tracked.starting;
  if (TraitsOf(op_).Has(kLoadsCode)) return;
  number_ = ++work::sent;
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

void MessageInFlight::NeverSent() {
  const std::lock_guard lock(tracked.mutex);
  if (IsOfThisWatch()) --tracked.starting;
}

// A copy is over with its answer, and so is all that its stream had before; other calls say it by NoteDone.
void MessageInFlight::FinishWatched() {
  const Traits done = TraitsOf(op_);
  op_ = Op::kOpen;
  if (done.Has(kNoWork) || !work::under_way.load() || (done.Has(kAwaits) && !succeeded_)) return;
  // First the pages: while work is said to be under way, none becomes one that is kept for long.
  work::managed_pages.exchange(/*read_compared=*/true);
  {
    const std::lock_guard lock(tracked.mutex);
    if (!IsOfThisWatch()) return;
    if (succeeded_ && done.Has(kCopies) && stream_ != kSeveral && alone_) {
      NoteStreamDone(stream_, number_);
      if (stream_ == context_) NoteBlockingDone(context_, sent_before_);
    }
    if (!NothingLeft()) return;
    NothingIsUnderWay();
  }
  work::managed_pages.restore();
}

void Submissions::NoteRecord(Op op, Object& event, const Object* stream, uint64_t posts) {
  if (!TraitsOf(op).Has(kRecordsEvent)) return;
  event.progress.recorded_in.store(stream, std::memory_order_relaxed);
  event.progress.recorded_calls.store(calls_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  event.progress.work.store(posts, std::memory_order_release);
}

void Submissions::NoteDone(const Subject& subject, const Stamp& stamp, bool by_fence) {
  Object* object = subject.object;
  if (object == nullptr) return;
  // Before others may learn here that it is done.
  if (stamp.watch != 0) EndWatched(subject, stamp, by_fence);
  Progress& done = subject.kind == Kind::kLegacyStream ? ContextOf(object).legacy_stream
                   : subject.kind == Kind::kCopies     ? ContextOf(object).copies
                                                       : object->progress;
  done.done_posts.store(stamp.posts, std::memory_order_release);
  done.done_calls.store(stamp.calls, std::memory_order_release);
}

// Posts have numbers of their own: only the record itself can be the newest both of the event and of a
// stream, whatever other threads record meanwhile. A record by a call counts as a call, a graph that has one
// as work anywhere.
bool Submissions::EndsItsStream(const Object& event, const Object** stream) const {
  const uint64_t record = event.progress.work.load(std::memory_order_acquire);
  const uint64_t elsewhere = elsewhere_.load(std::memory_order_acquire);
  *stream = event.progress.recorded_in.load(std::memory_order_relaxed);
  if (record == 0 || event.progress.recorded_calls.load(std::memory_order_relaxed) != calls()) return false;
  if (*stream == nullptr) return elsewhere == record;
  return elsewhere < record && (*stream)->progress.work.load(std::memory_order_acquire) == record;
}

void Submissions::NoteAnswer() {
  answered_ms_.store(CoarseMs(), std::memory_order_relaxed);
}

bool Submissions::IsTrusted() const {
  return CoarseMs() - answered_ms_.load(std::memory_order_relaxed) < kTrustMs;
}

// An end that was told before needs the exchange of pages only if it ends the lending of them.
void Submissions::EndWatched(const Subject& subject, const Stamp& stamp, bool by_fence) {
  if (!work::under_way.load() || (subject.kind == Kind::kCopies && !by_fence)) return;
  const auto is_last = [&] {  // whether nothing is left; with the mutex
    if (stamp.watch != work::watch.load(std::memory_order_relaxed)) return false;
    const WireHandle handle = WireOf(subject.object);
    switch (subject.kind) {
      case Kind::kNothing:
        return false;
      case Kind::kStream:
        NoteStreamDone(handle, stamp.work);
        break;
      case Kind::kLegacyStream:
      case Kind::kCopies:
        // Waiting for it means the blocking ones, as does a copy in it. A fence waits where there are none.
        NoteStreamDone(handle, stamp.work);
        NoteBlockingDone(handle, stamp.work);
        break;
      case Kind::kEvent:
        NoteEventDone(handle, stamp.work);
        break;
      case Kind::kContext:
        NoteContextDone(handle, stamp.work);
        break;
    }
    return NothingLeft();
  };
  if (!by_fence) {
    const std::lock_guard lock(tracked.mutex);
    if (!is_last()) return;
  }
  // Before it is said that nothing is under way, as in FinishWatched. Only a fence tells the program something new: where it knew of an end
  // already, it has had the device's bytes.
  work::managed_pages.exchange(/*read_compared=*/by_fence);
  {
    const std::lock_guard lock(tracked.mutex);
    if (!is_last()) return;
    NothingIsUnderWay();
  }
  work::managed_pages.restore();
}

}  // namespace causeway::guest
