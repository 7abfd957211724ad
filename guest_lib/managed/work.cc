// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/managed/work.h"

#include <map>
#include <mutex>

#include "guest_lib/managed/pager.h"

namespace causeway::guest {
namespace {

constexpr WireHandle kSeveral = ~WireHandle{0};
constexpr size_t kMaxEvents = 4096;  // remembered; of others nothing follows

// What one event stands for: all work up to `started`, if it went to `stream` alone.
struct EventMark {
  uint64_t started;
  WireHandle stream;
};

// Guarded by the mutex, as are changes of `work::under_way`. No message is sent and no page touched while it
// is held.
struct Tracked {
  std::mutex mutex;
  uint64_t started = 0;
  uint64_t unnamed = 0;  // messages on their way whose stream is not known yet
  // Where the work since the last settlement went; 0: nowhere that is known. Work on a context's legacy
  // stream counts under the context.
  WireHandle stream = 0, context = 0;
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

void Merge(WireHandle* place, WireHandle value) {
  *place = *place == 0 || *place == value ? value : kSeveral;
}

WireHandle StreamKey(WireHandle context) {
  return named_stream != 0 && named_stream != kLegacyStreamWire ? named_stream : context;
}

// Whether success of the call means that all work is done. The caller holds the mutex.
bool Settles(Op op, WireHandle context, uint64_t* started) {
  if (tracked.unnamed != 0) return false;
  *started = tracked.started;
  switch (op) {
    case Op::kDrainDevice:
    case Op::cuMemFree_v2:
    case Op::cuCtxSynchronize:
      return tracked.context == 0 || tracked.context == context;
    case Op::cuEventSynchronize:
    case Op::cuEventQuery: {
      const auto found = tracked.events.find(named_event);
      if (found == tracked.events.end()) return false;
      *started = found->second.started;
      return found->second.stream != kSeveral && found->second.stream == tracked.stream;
    }
    case Op::cuCtxSynchronize_v2:
      return false;  // of a context that is named
    default:
      return tracked.stream == 0 || tracked.stream == StreamKey(context);
  }
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
  --tracked.unnamed;
}

void MessageMark::Forget() {
  named_stream = named_event = 0;
}

void MessageMark::StartWatched(Op op) {
  op_ = op;
  succeeded_ = settles_ = false;
  if (counted_ || KindOf(op) != Kind::kWork) return;
  {
    const std::lock_guard lock(tracked.mutex);
    ++tracked.started;
    ++tracked.unnamed;
    counted_ = true;
    // Before the pages are looked at: a page that becomes accessible after that look sees it (ManagedAreas).
    work::under_way.store(true);
  }
  GiveBackManagedPages();
}

void MessageMark::NamedWatched(WireHandle context) {
  const std::lock_guard lock(tracked.mutex);
  if (counted_) {
    --tracked.unnamed;
    counted_ = false;
    Merge(&tracked.stream, StreamKey(context));
    Merge(&tracked.context, context);
    if (op_ == Op::cuEventRecord || op_ == Op::cuEventRecordWithFlags) {
      if (tracked.events.size() >= kMaxEvents) tracked.events.clear();
      tracked.events[named_event] = {tracked.started, tracked.stream};
    }
  }
  if (KindOf(op_) == Kind::kWaits || AlsoWaits(op_)) settles_ = Settles(op_, context, &started_);
}

void MessageMark::FinishWatched() {
  const Op op = op_;
  op_ = Op::kOpen;
  if (KindOf(op) == Kind::kNeither || !work::under_way.load()) return;
  if (KindOf(op) == Kind::kWaits && !succeeded_) return;
  // First the pages: while work is said to be under way, none becomes one that is kept for long.
  ExchangeManagedPages();
  {
    const std::lock_guard lock(tracked.mutex);
    if (!settles_ || !succeeded_ || tracked.started != started_ || tracked.unnamed != 0) return;
    tracked.stream = tracked.context = 0;
    tracked.events.clear();
    work::under_way.store(false);
  }
  RestoreManagedPages();
}

}  // namespace causeway::guest
