// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/stream/quiet_event.h"

#include <algorithm>

#include "guest_lib/session/captures.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway::guest {
namespace {

constexpr uint8_t kWordWaits = 2;  // so many in a row, and the next is expected to be one

// Of all events.
Mutex<Lock::kEventRecords>& mutex = *new Mutex<Lock::kEventRecords>;  // never destroyed

// In the event's context, which must be the current one.
bool MakeStandIn(Object* event) {
  if (event->context != CurrentContextObject()) return false;
  CUevent made = nullptr;
  const unsigned flags = event->flags & ~unsigned{CU_EVENT_BLOCKING_SYNC};
  if (Post<Op::cuEventCreate>(&made, flags) != CUDA_SUCCESS) return false;
  Object* stand_in = Find(made);
  stand_in->flags = flags;
  stand_in->detail = event;
  event->progress.stand_in.store(stand_in, std::memory_order_release);  // partner: OnHost
  return true;
}

}  // namespace

RecordPlace::RecordPlace(Object* event) {
  if ((event->flags & (CU_EVENT_BLOCKING_SYNC | CU_EVENT_INTERPROCESS)) != CU_EVENT_BLOCKING_SYNC) return;
  lock_ = std::unique_lock(mutex);
  Progress& progress = event->progress;
  uint8_t place = progress.place.load(std::memory_order_relaxed);
  if ((place & kForGood) != 0 || AnyCapture()) return;
  bool quiet = progress.word_waits.load(std::memory_order_relaxed) >= kWordWaits;
  if (quiet && progress.stand_in.load(std::memory_order_relaxed) == nullptr) quiet = MakeStandIn(event);
  progress.place.compare_exchange_strong(place, quiet ? kStandIn : 0);  // it may be for good by now
}

void NoteBlockingWait(Object* event, bool by_word) {
  std::atomic<uint8_t>& waits = event->progress.word_waits;
  const uint8_t before = waits.load(std::memory_order_relaxed);
  waits.store(by_word ? std::min<uint8_t>(before + 1, kWordWaits) : 0, std::memory_order_relaxed);
}

CUresult AskForEvent(CUevent event) {
  constexpr uint64_t kLeastUs = 200, kMostUs = 5'000, kShare = 8;
  const Object* object = Find(event);
  const uint64_t began_us = NowUs();
  // While a stream captures a question is not a wait.
  while (object != nullptr && OnHost(object, false) != object && !AnyCapture()) {
    const CUresult result = Wait<Op::cuEventQuery>(event);
    if (result == CUDA_SUCCESS) return result;
    if (result != CUDA_ERROR_NOT_READY) break;  // a wait has errors of its own
    SleepUs(std::clamp((NowUs() - began_us) / kShare, kLeastUs, kMostUs));
    object = Find(event);
  }
  return Wait<Op::cuEventSynchronize>(event);
}

CUevent TakeStandIn(CUevent event) {
  Object* object = Find(event);
  if ((object->flags & CU_EVENT_BLOCKING_SYNC) == 0) return nullptr;
  const std::lock_guard lock(mutex);
  Progress& progress = object->progress;
  progress.place.store(kForGood);
  return reinterpret_cast<CUevent>(progress.stand_in.exchange(nullptr, std::memory_order_acq_rel));
}

}  // namespace causeway::guest
