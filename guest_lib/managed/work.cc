// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/managed/work.h"

#include <map>
#include <mutex>

#include "guest_lib/managed/pager.h"

namespace causeway::guest {
namespace {

using work::kSeveral;
constexpr size_t kMaxEvents = 4096;   // remembered; of others nothing follows
constexpr size_t kMaxStreams = 1024;  // told apart

// Work is numbered when all that is sent from then on comes after it.
struct StreamMark {
  WireHandle context;
  uint64_t last;  // the newest work on it
};
// What one event stands for: all work up to `last` on one stream.
struct EventMark {
  WireHandle stream;
  uint64_t last;
};

// Guarded by the mutex, as are changes of `work::under_way`. No message is sent and no page touched while it
// is held.
struct Tracked {
  std::mutex mutex;
  uint64_t sent = 0;      // work, so far
  uint64_t starting = 0;  // messages that may be work and have no number yet
  // Streams with work that nobody has waited for. Work on a context's legacy stream counts under the context,
  // and where it went to several under kSeveral.
  std::map<WireHandle, StreamMark> streams;
  std::map<WireHandle, EventMark> events;
};
Tracked& tracked = *new Tracked;  // never destroyed

thread_local WireHandle named_stream = 0, named_event = 0;

enum class Kind { kNeither, kWork, kWaits };

// What neither starts work nor waits for any; and what waits for work that was started before. All else may
// start work.
Kind KindOf(Op op) {
  switch (op) {
    case Op::kOpen:
    case Op::kOpenChannel:
    case Op::kAddArena:
    case Op::kBeginBlob:
    case Op::kAppendBlob:
    case Op::kFetchOutput:
    case Op::kFetchBlob:
    case Op::kDescribeFunction:
    case Op::kPostedResult:
    case Op::kUnsafeCall:
    case Op::kDropShared:
    case Op::kFindManaged:
    case Op::cuMemAlloc_v2:
    case Op::cuMemAllocManaged:
    case Op::cuMemGetInfo_v2:
    case Op::cuMemAdvise_v2:
    case Op::cuMemRangeGetAttribute:
    case Op::cuPointerGetAttribute:
    case Op::cuStreamCreate:
    case Op::cuStreamCreateWithPriority:
    case Op::cuEventCreate:
    case Op::cuEventElapsedTime_v2:
      return Kind::kNeither;
    case Op::kDrainDevice:
    case Op::cuMemFree_v2:
    case Op::cuCtxSynchronize:
    case Op::cuCtxSynchronize_v2:
    case Op::cuStreamSynchronize:
    case Op::cuStreamQuery:
    case Op::cuEventSynchronize:
    case Op::cuEventQuery:
      return Kind::kWaits;
    default:
      return Kind::kWork;
  }
}

// Work that is done when its answer comes, and all that was before it on its stream.
bool AlsoWaits(Op op) {
  return op == Op::kCopyToHost || op == Op::cuMemcpyDtoH_v2 || op == Op::cuMemcpyHtoD_v2;
}

// The caller holds the mutex, here and below.
void NoteWork(WireHandle stream, WireHandle context, uint64_t number) {
  if (tracked.streams.size() >= kMaxStreams && !tracked.streams.contains(stream)) stream = kSeveral;
  StreamMark& mark = tracked.streams.try_emplace(stream, StreamMark{context, 0}).first->second;
  if (mark.context != context) mark.context = kSeveral;
  mark.last = number;
}

void NoteDone(WireHandle stream, uint64_t last) {
  const auto found = tracked.streams.find(stream);
  if (found != tracked.streams.end() && found->second.last <= last) tracked.streams.erase(found);
}

}  // namespace

void work::NameStream(WireHandle stream) {
  named_stream = named_stream == 0 || named_stream == stream ? stream : kSeveral;
}

void work::NameEvent(WireHandle event) {
  named_event = event;
}

MessageMark::~MessageMark() {
  if (!counted_) return;
  const std::lock_guard lock(tracked.mutex);  // the message was never sent
  --tracked.starting;
}

void MessageMark::Forget() {
  named_stream = named_event = 0;
}

void MessageMark::StartWatched(Op op) {
  op_ = op;
  succeeded_ = false;
  number_ = 0;
  {
    const std::lock_guard lock(tracked.mutex);
    sent_before_ = tracked.sent;
    if (counted_ || KindOf(op) != Kind::kWork) return;
    ++tracked.starting;
    counted_ = true;
    // Before the pages are looked at: a page that becomes accessible after that look sees it (ManagedAreas).
    work::under_way.store(true);
  }
  GiveBackManagedPages();
}

void MessageMark::NamedWatched(WireHandle context) {
  context_ = context;
  if (op_ == Op::cuGraphLaunch) named_event = kSeveral;
  stream_ = named_stream != 0 && named_stream != kLegacyStreamWire ? named_stream : context;
  event_ = named_event;
  if (!counted_ || event_ == 0) return;
  // What the event stood for it stands for no more. Those that a graph or a launch records are not known.
  const std::lock_guard lock(tracked.mutex);
  event_ == kSeveral ? tracked.events.clear() : static_cast<void>(tracked.events.erase(event_));
}

void MessageMark::SentWatched() {
  const std::lock_guard lock(tracked.mutex);
  --tracked.starting;
  counted_ = false;
  number_ = ++tracked.sent;
  const auto before = tracked.streams.find(stream_);
  alone_ = before == tracked.streams.end() || before->second.last <= sent_before_;
  NoteWork(stream_, context_, number_);
  if (op_ != Op::cuEventRecord && op_ != Op::cuEventRecordWithFlags) return;
  if (tracked.events.size() >= kMaxEvents) tracked.events.clear();
  tracked.events[event_] = {stream_, number_};
}

// What its success says is done.
void MessageMark::NoteAllDone() {
  switch (op_) {
    case Op::kDrainDevice:
    case Op::cuMemFree_v2:
    case Op::cuCtxSynchronize:
      std::erase_if(tracked.streams, [this](const auto& entry) {
        return entry.second.context == context_ && entry.second.last <= sent_before_;
      });
      return;
    case Op::cuEventSynchronize:
    case Op::cuEventQuery: {
      const auto found = tracked.events.find(event_);
      if (found != tracked.events.end() && found->second.stream != kSeveral)
        NoteDone(found->second.stream, std::min(found->second.last, sent_before_));
      return;
    }
    case Op::cuCtxSynchronize_v2:
      return;  // of a context that is named
    case Op::cuStreamSynchronize:
    case Op::cuStreamQuery:
      if (stream_ != kSeveral) NoteDone(stream_, sent_before_);
      return;
    default:  // AlsoWaits
      if (stream_ != kSeveral && alone_) NoteDone(stream_, number_);
  }
}

void MessageMark::FinishWatched() {
  const Op op = op_;
  if (KindOf(op) == Kind::kNeither || !work::under_way.load() ||
      (KindOf(op) == Kind::kWaits && !succeeded_)) {
    op_ = Op::kOpen;
    return;
  }
  // First the pages: while work is said to be under way, none becomes one that is kept for long.
  ExchangeManagedPages();
  {
    const std::lock_guard lock(tracked.mutex);
    if (succeeded_ && (KindOf(op) == Kind::kWaits || AlsoWaits(op))) NoteAllDone();
    op_ = Op::kOpen;
    if (!tracked.streams.empty() || tracked.starting != 0) return;
    tracked.events.clear();
    work::under_way.store(false);
  }
  RestoreManagedPages();
}

}  // namespace causeway::guest
