// SPDX-License-Identifier: Apache-2.0
// The clocks.
#include "guest_lib/session/progress.h"

#include <time.h>

namespace causeway::guest {
namespace {

// So long after the host's last answer it is asked again, so that a program that only asks learns of a lost
// session, and of faults that are not its own.
constexpr uint64_t kTrustMs = 20;

// Of a few ms' resolution, for the price of a load.
uint64_t CoarseMs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1'000'000;
}

}  // namespace

void Activity::NotePost(Op op, const Works& works, uint64_t sequence) {
  const uint64_t posts = sequence + 1;
  if (works.is_copy || op == Op::kMark) return;
  beyond_copies_.store(posts, std::memory_order_release);
  if (works.event != nullptr) {
    Progress& event = works.event->progress;
    event.recorded_in.store(works.stream, std::memory_order_relaxed);
    event.recorded_calls.store(calls_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    event.work.store(posts, std::memory_order_release);
  }
  if (works.stream != nullptr) {
    works.stream->progress.work.store(posts, std::memory_order_release);
  } else if (!LeavesNoWork(op)) {
    elsewhere_.store(posts, std::memory_order_release);
  }
}

// Posts have numbers of their own: only the record itself can be the newest both of the event and of a
// stream, whatever other threads record meanwhile. A record by a call counts as a call, a graph that has one
// as work anywhere.
bool Activity::EndsItsStream(const Object& event, const Object** stream) const {
  const uint64_t record = event.progress.work.load(std::memory_order_acquire);
  *stream = event.progress.recorded_in.load(std::memory_order_relaxed);
  if (record == 0 || event.progress.recorded_calls.load(std::memory_order_relaxed) != calls_.load())
    return false;
  if (*stream == nullptr) return elsewhere() == record;
  return elsewhere() < record && (*stream)->progress.work.load(std::memory_order_acquire) == record;
}

void Activity::NoteAnswer() {
  answered_ms_.store(CoarseMs(), std::memory_order_relaxed);
}

bool Activity::IsTrusted() const {
  return CoarseMs() - answered_ms_.load(std::memory_order_relaxed) < kTrustMs;
}

}  // namespace causeway::guest
