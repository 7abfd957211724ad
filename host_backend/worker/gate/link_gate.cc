// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/gate/link_gate.h"

#include <algorithm>
#include <utility>

#include "host_backend/common/shares/turn_words.h"

namespace causeway::host {
namespace {

constexpr uint64_t kPiecePatienceNs = 10'000'000;  // for a piece, before more may be under way
constexpr uint64_t kMostDoublings = 24;
// Behind a mark the GPU pauses for some microseconds: small copies have one together.
constexpr uint64_t kMarksInWindow = 8;
constexpr uint64_t kClosedSleepNs = 1'000'000;  // the daemon wakes it

}  // namespace

// The daemon tells all workers of a VM the same, so a worker may be told of its own copies; it compares with what it has copied.
bool LinkGate::OthersCopy() {
  const auto of = [this](uint32_t direction) {
    return static_cast<OtherCopies>(grant().others_copy[direction].load(std::memory_order_relaxed));
  };
  const OtherCopies to_device = of(kToDevice), to_host = of(kToHost);
  if (to_device == OtherCopies::kNone && to_host == OtherCopies::kNone) return false;
  const uint64_t now = surroundings_.NowNs();
  if (IsStale(now)) return false;
  if (to_device == OtherCopies::kAnotherVm || to_host == OtherCopies::kAnotherVm) return true;
  constexpr uint64_t kLookNs = 50'000'000;
  constexpr double kMuch = double{kMuchBytes} / double{kMuchNs};  // bytes a nanosecond
  if (now - looked_ns_ > kLookNs) {
    const uint64_t bytes = words_.copied[kToDevice].load(std::memory_order_relaxed) +
                           words_.copied[kToHost].load(std::memory_order_relaxed);
    // After a pause a single large copy counts: the daemon, too, takes it for much. Bytes of a longer time count as if they were of
    // kMuchNs, which is wrong until the next look at most.
    const uint64_t within = std::min(now - looked_ns_, kMuchNs);
    copies_much_ = static_cast<double>(bytes - looked_bytes_) > static_cast<double>(within) * kMuch;
    looked_ns_ = now;
    looked_bytes_ = bytes;
  }
  return !copies_much_;
}

bool LinkGate::IsStale(uint64_t now_ns) const {
  const uint64_t seen = grant().seen_ns.load(std::memory_order_acquire);
  return now_ns > seen && now_ns - seen > kGrantLifeNs;
}

// A VM that has a cap and was away: what it saved up is worth a piece, and the daemon is told and looks soon. Without a daemon
// everything passes.
uint64_t LinkGate::MayPassAsleep(uint32_t direction, uint64_t bytes, uint64_t now_ns) {
  const LinkGrantWords& words = grant();
  if (words.window_kib[direction].load(std::memory_order_relaxed) == 0) return bytes;
  const std::lock_guard lock(mutex_);
  uint64_t& passed_ns = sides_[direction].passed_asleep_ns;
  const bool looked = words.seen_ns.load(std::memory_order_acquire) > passed_ns;
  if (passed_ns != 0 && !looked) return now_ns - passed_ns > kGrantLifeNs ? bytes : 0;
  passed_ns = now_ns;
  return PieceOf(direction, bytes);
}

uint64_t LinkGate::MayPass(uint32_t direction, uint64_t bytes, uint64_t now_ns) {
  const LinkGrant grant = GrantOf(direction);
  if (bytes <= kSmallBytes || grant == LinkGrant::kOpen) return bytes;
  if (grant == LinkGrant::kAsleep) return MayPassAsleep(direction, bytes, now_ns);
  if (IsStale(now_ns)) return bytes;
  if (grant != LinkGrant::kWindow) return 0;
  const uint64_t window = WindowOf(direction);
  const uint64_t piece = PieceOf(direction, bytes);
  std::optional<NewMark> mark;
  {
    const std::lock_guard lock(mutex_);
    // The caller read the clock before it waited for the lock.
    now_ns = std::max(now_ns, sides_[direction].last_finished_ns);
    const uint64_t under_way = UnderWay(direction, now_ns);
    if (under_way == 0) return piece;
    const uint64_t doublings =
        std::min((now_ns - sides_[direction].last_finished_ns) / kPiecePatienceNs, kMostDoublings);
    if (under_way + piece <= window << doublings) return piece;
    mark = ReserveMark(direction, now_ns);
  }
  Place(direction, mark);
  return 0;
}

uint64_t LinkGate::WindowOf(uint32_t direction) const {
  const uint64_t kib = grant().window_kib[direction].load(std::memory_order_relaxed);
  return std::max(kib << 10, 2 * kLeastPiece);
}

uint64_t LinkGate::PieceOf(uint32_t direction, uint64_t bytes) const {
  return std::min(bytes, std::clamp(WindowOf(direction) / 2, kLeastPiece, kMostPiece));
}

uint64_t LinkGate::UnderWay(uint32_t direction, uint64_t now_ns) {
  Side& side = sides_[direction];
  uint64_t bytes = side.unmarked;
  for (uint32_t slot = 0; slot < kLinkMarks; ++slot) {
    Mark& mark = side.marks[slot];
    if (mark.bytes == 0) continue;
    if (words_.done[direction][slot].load(std::memory_order_acquire) == mark.value) {
      mark.bytes = 0;
      side.last_finished_ns = now_ns;
    } else {
      bytes += mark.bytes;
    }
  }
  return bytes;
}

void LinkGate::Note(uint32_t direction, uint64_t bytes) {
  const uint64_t now = surroundings_.NowNs();
  std::optional<NewMark> mark;
  {
    const std::lock_guard lock(mutex_);
    Side& side = sides_[direction];
    if (UnderWay(direction, now) == 0) side.last_finished_ns = now;
    side.unmarked += bytes;
    if (side.unmarked >= WindowOf(direction) / kMarksInWindow) mark = ReserveMark(direction, now);
  }
  Place(direction, mark);
}

// For all that passed and has none. What finds all marks outstanding gets one when there is one.
std::optional<LinkGate::NewMark> LinkGate::ReserveMark(uint32_t direction, uint64_t now_ns) {
  Side& side = sides_[direction];
  if (side.unmarked == 0) return {};
  UnderWay(direction, now_ns);
  for (uint32_t slot = 0; slot < kLinkMarks; ++slot) {
    Mark& mark = side.marks[slot];
    if (mark.bytes != 0) continue;
    mark.value = ++side.last_value;
    mark.bytes = std::exchange(side.unmarked, 0);
    return NewMark{slot, mark.value};
  }
  return {};
}

// Not under the lock: the driver waits while its queue is full. Without a mark nobody could say when the bytes are done, so they
// count as done. The slot may have another mark by then, if all were forgotten meanwhile.
void LinkGate::Place(uint32_t direction, const std::optional<NewMark>& mark) {
  if (!mark || surroundings_.Mark(words_.done[direction][mark->slot], mark->value)) return;
  const std::lock_guard lock(mutex_);
  Mark& placed = sides_[direction].marks[mark->slot];
  if (placed.value == mark->value) placed.bytes = 0;
}

void LinkGate::ForgetMarks() {
  const std::lock_guard lock(mutex_);
  for (Side& side : sides_) {
    side.unmarked = 0;
    for (Mark& mark : side.marks) mark.bytes = 0;
  }
}

uint64_t LinkGate::Await(uint32_t direction, uint64_t bytes, const std::atomic<bool>& stop) {
  const uint64_t begin = surroundings_.NowNs();
  // Nobody looks: the daemon is told, now and while this waits for it.
  const auto tell = [&](uint64_t now) {
    if (GrantOf(direction) == LinkGrant::kAsleep || IsStale(now)) surroundings_.Wake();
  };
  tell(begin);
  uint64_t piece = MayPass(direction, bytes, begin);
  if (piece == 0) {
    words_.waiting[direction].fetch_add(1);
    for (uint64_t now = begin; !stop.load(std::memory_order_acquire); now = surroundings_.NowNs()) {
      const std::atomic<uint32_t>& grant = this->grant().grant[direction];
      const uint32_t seen = grant.load(std::memory_order_acquire);
      if ((piece = MayPass(direction, bytes, now)) != 0) break;
      tell(now);
      const bool closed = seen == static_cast<uint32_t>(LinkGrant::kClosed);
      if (now - begin < kPieceSpinNs && !closed) continue;
      surroundings_.Sleep(grant, seen, closed ? kClosedSleepNs : kPieceNapNs);
    }
    words_.waiting[direction].fetch_sub(1);
  }
  Count(direction, piece);
  return piece;
}

}  // namespace causeway::host
