// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/gate/gate.h"

#include <algorithm>

namespace causeway::host {
namespace {

constexpr uint64_t kBatchNs = 250'000;  // of work for each mark: two of them keep the GPU fed
constexpr uint32_t kMostBatch = 16;     // what can pass before anybody knows that kernels have become long
// Behind a kernel so long no second one need be ready: the gap is small beside it, and what is outstanding at the end of
// a turn is what all others wait for.
constexpr uint64_t kLongNs = 1'500'000;
constexpr uint32_t kAllRecords = ~0u;
// Records in a turn beside work that does not end. Of two the second tells how long one takes when nobody else is between.
constexpr uint64_t kLeastQueued = 2, kMostQueued = 256;
constexpr uint64_t kMostSoonNs = 500'000;
// A thread in its turn spins for what takes less: a nap would be longer, and leave the GPU without work.
constexpr uint64_t kBriefNs = 100'000;
constexpr uint64_t kSpinNs = 20'000, kNapNs = 50'000, kSleepNs = 5'000'000;

}  // namespace

bool Gate::MayPass(uint64_t now_ns) {
  const GrantWords& words = this->grant();
  const auto grant = static_cast<Grant>(words.grant.load(std::memory_order_acquire));
  if (grant == Grant::kOpen || grant == Grant::kAsleep) return true;
  const uint64_t seen = words.seen_ns.load(std::memory_order_acquire);
  if (now_ns > seen && now_ns - seen > kGrantLifeNs) return true;
  std::optional<Mark> mark;
  {
    const std::lock_guard lock(mutex_);
    // The caller read the clock before it waited for the lock.
    now_ns = std::max({now_ns, last_finished_ns_, last_looked_ns_});
    if ((grant == Grant::kTurn || grant == Grant::kBeside) && HasRoom(now_ns)) return true;
    mark = ReserveForPassed();
  }
  Place(mark);
  return false;
}

bool Gate::HasRoom(uint64_t now_ns) {
  const UnderWay outstanding = Outstanding(now_ns);
  if (outstanding.marks == 0) return true;
  // In records, because those of several streams, and of several threads, have a mark each.
  const uint64_t usual = UsualRecords();
  if (outstanding.records < usual && outstanding.marks < kTurnMarks) return true;
  // Once more than all marks could be outstanding, records pass without one.
  const uint64_t doublings = std::min<uint64_t>((now_ns - last_finished_ns_) / kNothingFinishedNs, 16);
  return doublings != 0 && outstanding.records < (usual << doublings);
}

// How many records may be outstanding. Beside work that does not end the GPU goes on to that when nothing is left here, for a
// whole slice of its: what is queued has to last longer than the slice of this process.
uint64_t Gate::UsualRecords() const {
  const uint64_t usual = uint64_t{usual_batches_} * batch_;
  const uint64_t queue_ns = grant().queue_us.load(std::memory_order_relaxed) * uint64_t{1000};
  if (queue_ns == 0 || record_ns_ == 0) return usual;
  return std::max(usual, std::clamp(queue_ns / record_ns_, kLeastQueued, kMostQueued));
}

// How many of them have one mark: there are no more marks than kTurnMarks.
uint32_t Gate::BatchSize() const {
  return std::max(batch_, static_cast<uint32_t>(UsualRecords() / (kTurnMarks / 2)));
}

// What was queued while the VM was alone counts as one batch, and says nothing of how many records take how long.
Gate::UnderWay Gate::Outstanding(uint64_t now_ns) {
  UnderWay left;
  uint32_t finished = 0, finished_records = 0;
  bool queue_is_left = false, queue_moved = false;
  uint64_t since = now_ns;
  for (uint32_t slot = 0; slot < kTurnMarks; ++slot) {
    if (!outstanding_[slot]) continue;
    const bool done = words_.done[slot].load(std::memory_order_acquire) ==
                      words_.sent[slot].load(std::memory_order_relaxed);
    outstanding_[slot] = !done;
    left.marks += done ? 0 : 1;
    if (queued_[slot]) {
      (done ? queue_moved : queue_is_left) = true;
    } else if (!done) {
      left.records += records_[slot];
    } else {
      ++finished;
      finished_records += records_[slot];
      since = std::min(since, sent_ns_[slot]);
    }
  }
  if (finished != 0) {
    // Two batches that were done between two looks, one soon after the other, took no longer than that, however long they had
    // been waiting: the GPU was with another process of this VM meanwhile.
    const bool brief = finished_records >= 2 * batch_ && now_ns - last_looked_ns_ < kBriefNs;
    const uint64_t took_ns = now_ns - std::max(since, last_finished_ns_);
    NoteRecord(took_ns / std::max(finished_records, 1u));
    Adapt(brief ? now_ns - last_looked_ns_ : took_ns * batch_ / std::max(finished_records, 1u));
  }
  if (finished != 0 || queue_moved) last_finished_ns_ = now_ns;
  if (queue_is_left) left.records += batch_;
  last_looked_ns_ = now_ns;
  return left;
}

// The shortest that was seen lately: others, too, have the GPU between one record and the next.
void Gate::NoteRecord(uint64_t took_ns) {
  if (record_ns_ == 0 || took_ns < record_ns_) {
    record_ns_ = std::max<uint64_t>(took_ns, 1);
  } else {
    record_ns_ += (took_ns - record_ns_) / 16;
  }
}

// As many records for each batch as take its time. Too long by far, and the next are single again.
void Gate::Adapt(uint64_t took_ns) {
  usual_batches_ = took_ns > kLongNs ? 1 : 2;
  brief_.store(took_ns < kBriefNs, std::memory_order_relaxed);
  if (took_ns > 4 * kBatchNs) {
    batch_ = 1;
  } else if (took_ns > 2 * kBatchNs) {
    batch_ = std::max(1u, batch_ / 2);
  } else if (took_ns < kBatchNs / 2) {
    batch_ = std::min(kMostBatch, batch_ * 2);
  }
}

std::optional<Gate::Mark> Gate::ReserveForPassed() {
  const uint32_t openings = grant().openings.load(std::memory_order_acquire);
  if (openings == openings_ && !HasUnmarked()) return {};
  openings_ = openings;
  return ReserveMark(kAllRecords);
}

// Not under the lock: the driver waits while its queue is full, and what makes room may be a record that is to pass.
void Gate::Place(const std::optional<Mark>& mark) {
  if (mark && !surroundings_.Mark(words_.done[mark->slot], mark->value)) DropMark(*mark);
}

void Gate::MarkQueued() {
  std::optional<Mark> mark;
  {
    const std::lock_guard lock(mutex_);
    Outstanding(surroundings_.NowNs());
    if (std::count(outstanding_.begin(), outstanding_.end(), false) < 2) return;  // one is left for turns
    mark = ReserveMark(kAllRecords);
    if (mark) queued_[mark->slot] = true;
  }
  Place(mark);
}

void Gate::MarkRest() {
  std::optional<Mark> mark;
  {
    const std::lock_guard lock(mutex_);
    if (HasUnmarked()) mark = ReserveMark(kAllRecords);
  }
  Place(mark);
}

std::optional<Gate::Mark> Gate::TakeMark() {
  if (!HasUnmarked()) return {};
  const std::lock_guard lock(mutex_);
  return HasUnmarked() ? ReserveMark(kAllRecords) : std::nullopt;
}

// The slot may have another mark already, if all were forgotten meanwhile.
void Gate::DropMark(const Mark& mark) {
  const std::lock_guard lock(mutex_);
  if (words_.sent[mark.slot].load(std::memory_order_relaxed) == mark.value) GiveUpMarkLocked(mark.slot);
}

void Gate::ForgetMarks() {
  const std::lock_guard lock(mutex_);
  for (uint32_t slot = 0; slot < kTurnMarks; ++slot) GiveUpMarkLocked(slot);
  words_.unmarked.store(0, std::memory_order_release);
}

// The mark stands for so many of the records that had none; it is outstanding before they have one.
std::optional<Gate::Mark> Gate::ReserveMark(uint32_t records) {
  const uint32_t unmarked = words_.unmarked.load(std::memory_order_relaxed);
  const uint32_t left = unmarked - std::min(unmarked, records);
  const auto free = std::find(outstanding_.begin(), outstanding_.end(), false);
  if (free == outstanding_.end()) {
    // More than all marks are outstanding: nobody could say when this is done, and busy it must not stay for ever.
    words_.unmarked.store(left, std::memory_order_release);
    return {};
  }
  const auto slot = static_cast<uint32_t>(free - outstanding_.begin());
  const uint64_t now = surroundings_.NowNs();
  if (std::find(outstanding_.begin(), outstanding_.end(), true) == outstanding_.end())
    last_finished_ns_ = now;
  const uint32_t value = ++last_value_;
  words_.sent[slot].store(value, std::memory_order_release);
  words_.unmarked.store(left, std::memory_order_release);
  outstanding_[slot] = true;
  queued_[slot] = false;
  records_[slot] = std::max(1u, unmarked - left);
  sent_ns_[slot] = now;
  return Mark{slot, value};
}

void Gate::GiveUpMarkLocked(uint32_t slot) {
  outstanding_[slot] = false;
  words_.sent[slot].store(words_.done[slot].load());
}

void Gate::Note(bool more) {
  if (grant().grant.load(std::memory_order_relaxed) == static_cast<uint32_t>(Grant::kAsleep)) return;
  std::optional<Mark> mark;
  {
    const std::lock_guard lock(mutex_);
    const uint32_t unmarked = words_.unmarked.load(std::memory_order_relaxed) + 1;
    words_.unmarked.store(unmarked, std::memory_order_relaxed);
    if (!more || unmarked >= BatchSize()) mark = ReserveMark(more ? kAllRecords : 1);
  }
  Place(mark);
}

bool Gate::Await(const std::atomic<bool>& stop) {
  const auto granted = static_cast<Grant>(grant().grant.load(std::memory_order_relaxed));
  if (granted == Grant::kAsleep) surroundings_.Wake();
  if (granted == Grant::kAsleep || granted == Grant::kOpen) return true;
  const uint64_t begin = surroundings_.NowNs();
  if (MayPass(begin)) return true;
  words_.waiting.fetch_add(1);
  bool passes = false;
  uint64_t now = begin, soon_ns = 0;
  for (; !stop.load(std::memory_order_acquire); now = surroundings_.NowNs()) {
    const std::atomic<uint32_t>& grant = this->grant().grant;
    const uint32_t seen = grant.load(std::memory_order_acquire);
    if ((passes = MayPass(now))) break;
    if (seen != static_cast<uint32_t>(Grant::kSoon)) soon_ns = 0;
    if (seen == static_cast<uint32_t>(Grant::kSoon) && soon_ns == 0) soon_ns = now;
    const bool brief = seen == static_cast<uint32_t>(Grant::kTurn) && brief_.load(std::memory_order_relaxed);
    if (now - begin < (brief ? 2 * kBriefNs : kSpinNs) || (soon_ns != 0 && now - soon_ns < kMostSoonNs))
      continue;
    // The end of a mark wakes nobody; a new grant does.
    surroundings_.Sleep(grant, seen, seen == static_cast<uint32_t>(Grant::kClosed) ? kSleepNs : kNapNs);
  }
  words_.waiting.fetch_sub(1);
  surroundings_.Waited(now - begin);
  return passes;
}

}  // namespace causeway::host
