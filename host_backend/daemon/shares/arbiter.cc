// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/shares/arbiter.h"

#include <algorithm>
#include <utility>

#include "host_backend/daemon/shares/looking.h"

namespace causeway::daemon {
namespace {

// What is there again before a VM whose cap was used up goes on: each turn costs a switch.
constexpr double kCapRestartNs = 4e6;
// A VM of a higher rank waits so long for the work of the one before it, and then begins beside it.
constexpr uint64_t kMostPreemptNs = 500'000;
// And any other one so long. What a VM has queued while it was alone can take far longer; the rest of that runs beside.
constexpr uint64_t kMostDrainNs = 50'000'000;
// The end of a turn is looked at without a pause for so long, and the next one is told so long before it.
constexpr uint64_t kHurryNs = 300'000, kSoonNs = 150'000;
// Who comes back so soon after a turn that it lost would have used it.
constexpr uint64_t kSoonBackNs = 300'000;
constexpr double kSavedNs = 100e6;  // and of what it is owed first, in percent of this
// What a latency VM saves up while it is idle: it does several requests at once by that, and uses less than its share on the whole.
// Others queue little on the GPU as long as it is known.
constexpr uint64_t kLatencySavedNs = 25'000'000;
// So long after somebody had little to do turns are short.
constexpr uint64_t kBriefNs = 10'000'000;
// Beside work that does not end: several of the driver's slices.
constexpr uint32_t kQueueUs = 8'000;
constexpr double kDebtNs = 1e9;

// Smaller goes first.
constexpr int kRankReserved = 0, kRankSoon = 1, kRankUsual = 2, kRankBeyondFloor = 3;

double Percent(uint32_t percent) {
  return percent / 100.0;
}

}  // namespace

size_t Arbiter::Add(const ShareTerms& terms) {
  const auto free = std::find_if(vms_.begin(), vms_.end(), [](const Vm& vm) { return !vm.used; });
  const auto at = static_cast<size_t>(free - vms_.begin());
  if (free == vms_.end()) vms_.emplace_back();
  vms_[at] = Vm{};
  vms_[at].used = true;
  vms_[at].virtual_ns = virtual_ns_;
  Set(at, terms);
  vms_[at].cap_ns = Percent(terms.cap_percent) * kCapBurstNs;
  return at;
}

void Arbiter::Remove(size_t vm) {
  vms_[vm] = Vm{};
  if (holder_ == vm) holder_.reset(), draining_ = false;
}

bool Arbiter::owes(size_t vm) const {
  const Vm& one = vms_[vm];
  const bool capped = one.terms.cap_percent < 100;
  return one.virtual_ns > virtual_ns_ ||
         (capped && one.cap_ns < Percent(one.terms.cap_percent) * kCapBurstNs);
}

void Arbiter::Set(size_t vm, const ShareTerms& terms) {
  vms_[vm].terms = terms;
  vms_[vm].terms.weight = std::clamp(terms.weight, 1u, kMostWeight);
}

void Arbiter::Look(uint64_t now_ns, std::span<const Demand> demands) {
  const uint64_t passed = now_ns > last_ns_ ? now_ns - last_ns_ : 0;
  const double counted = last_ns_ == 0 || passed > kMostBetweenLooks ? 0 : static_cast<double>(passed);
  last_ns_ = std::max(last_ns_, now_ns);
  // What was told last time holds for the time since then.
  for (Vm& vm : vms_) Refill(vm, counted);
  Charge(counted);
  wanting_ = 0;
  for (size_t i = 0; i < vms_.size(); ++i) {
    if (!vms_[i].used) continue;
    Note(vms_[i], i < demands.size() ? demands[i] : Demand{}, last_ns_);
    wanting_ += vms_[i].wants ? 1 : 0;
    NoteIdle(vms_[i], last_ns_);
  }
  Settle();
  Hand(last_ns_);
  Publish(last_ns_);
  SetSlices(last_ns_);
  AskForMarks();
}

void Arbiter::Note(Vm& vm, const Demand& demand, uint64_t now_ns) {
  vm.submitted = demand.submitted != vm.demand.submitted;
  if (vm.submitted) vm.last_submission_ns = now_ns;
  vm.unknown = vm.unknown || (vm.submitted && vm.grant == Grant::kOpen);
  vm.demand = demand;
  if (vm.submitted || demand.waiting || demand.busy) {
    if (vm.grant == Grant::kTurn && now_ns - vm.last_active_ns > terms_.least_linger_ns) vm.lingered = true;
    vm.last_active_ns = now_ns;
    NoteReturn(vm, now_ns);
  }
  const uint64_t within = vm.terms.share_class == ShareClass::kLatency ? kForgetNs : terms_.recent_ns;
  const bool recent = vm.last_submission_ns != 0 && now_ns - vm.last_submission_ns < within;
  vm.wants = demand.waiting || demand.busy || demand.leaves || recent;
}

// How soon a program goes on after its last kernel is its own business, and differs by its waits: learned. One that did go on in a turn
// while that lasted without work, and is back late, was at the end of a request of several parts.
void Arbiter::NoteReturn(Vm& vm, uint64_t now_ns) const {
  if (vm.left_ns == 0) return;
  if (now_ns - vm.left_ns < kSoonBackNs) {
    vm.linger_ns = std::min(terms_.most_linger_ns, 2 * LingerOf(vm));
  } else if (!vm.lingered) {
    vm.linger_ns = std::max(terms_.least_linger_ns, LingerOf(vm) / 2);
  }
  vm.left_ns = 0;
  vm.lingered = false;
}

// Who has much to do has nothing on the GPU for a moment, too, between two records, or before the first of a turn.
void Arbiter::NoteIdle(Vm& vm, uint64_t now_ns) {
  constexpr uint32_t kSeveral = 4;
  const bool idle = vm.wants && !vm.demand.waiting && !vm.demand.busy;
  if (idle && !std::exchange(vm.idle, true)) {
    vm.brief = vm.figures.had_ns - vm.idle_had_ns < terms_.turn_ns ? vm.brief + 1 : 0;
    if (vm.brief >= kSeveral) brief_ns_ = now_ns;
  }
  vm.idle = idle;
  if (idle) vm.idle_had_ns = vm.figures.had_ns;
}

void Arbiter::Refill(Vm& vm, double passed_ns) {
  if (!vm.used) return;
  vm.cap_ns += Percent(vm.terms.cap_percent) * passed_ns;
  vm.reserve_ns += Percent(vm.terms.reserve_percent) * passed_ns;
  vm.floor_ns += Percent(terms_.background_percent) * passed_ns;
  Limit(vm);
  if (vm.demand.waiting && (vm.grant == Grant::kClosed || vm.grant == Grant::kSoon)) {
    const auto passed = static_cast<uint64_t>(passed_ns);
    vm.figures.waited_ns += passed;
    if (!MayRun(vm)) vm.figures.throttled_ns += passed;
  }
}

// What can be saved up, and how far a VM can be in debt: of a kernel that ran for an hour a second remains.
void Arbiter::Limit(Vm& vm) const {
  const double reserve = Percent(vm.terms.reserve_percent) * kSavedNs;
  const double floor = Percent(terms_.background_percent) * kSavedNs;
  vm.cap_ns = std::clamp(vm.cap_ns, -kDebtNs, Percent(vm.terms.cap_percent) * kCapBurstNs);
  if (vm.cap_ns <= 0) vm.throttled = true;
  if (vm.cap_ns >= Percent(vm.terms.cap_percent) * kCapRestartNs) vm.throttled = false;
  vm.reserve_ns = std::clamp(vm.reserve_ns, -static_cast<double>(terms_.turn_ns), reserve);
  vm.floor_ns = std::clamp(vm.floor_ns, -kSavedNs, floor);
}

// The GPU's time since the last look goes to those that had work in it, a part for each of their contexts, as the GPU's own
// round does; where nobody had, to the one whose turn kept others out. Whoever has the turn pays at least its part by weight,
// because others may only say that they have work, and it may only say that it waits.
void Arbiter::Charge(double passed_ns) {
  const auto works = [](const Vm& vm) {
    return vm.used && (vm.demand.busy || vm.demand.leaves || (vm.grant == Grant::kOpen && vm.submitted));
  };
  const auto has_turn = [this](const Vm& vm) { return holder_ && &vm == &vms_[*holder_]; };
  const auto holds = [&](const Vm& vm) { return contended_ && has_turn(vm); };
  double busy = 0, weights = 0, users = 0;
  for (const Vm& vm : vms_) {
    busy += works(vm) ? vm.demand.contexts : 0;
    users += works(vm) || holds(vm) ? vm.terms.weight : 0;
    if (vm.used && MayRun(vm) && (vm.demand.waiting || works(vm))) weights += vm.terms.weight;
  }
  if (users == 0) return;
  for (Vm& vm : vms_) {
    if (vm.used && MayRun(vm) && (vm.demand.waiting || works(vm)) && weights > 0)
      vm.figures.due_ns += static_cast<uint64_t>(passed_ns * vm.terms.weight / weights);
    if (!works(vm) && !holds(vm)) continue;
    // One that has the turn and no work pays as if it had some: else to idle in it would cost less.
    const double by_round = works(vm) ? vm.demand.contexts / busy : 1 / (busy + 1);
    const double part = passed_ns * (has_turn(vm) ? std::max(by_round, vm.terms.weight / users) : by_round);
    vm.figures.had_ns += static_cast<uint64_t>(part);
    vm.virtual_ns += part / vm.terms.weight;
    vm.cap_ns -= part;
    vm.reserve_ns -= part;
    vm.floor_ns -= part;
    Limit(vm);
  }
  if (weights > 0) virtual_ns_ += passed_ns / weights;
}

// Keeps everybody's virtual time near the others': a VM that slept saves up what one turn is worth and no more, and one
// that wanted less than its share what a long one is, else it would shut out all others when it wants more.
void Arbiter::Settle() {
  double least = -1;
  for (const Vm& vm : vms_) {
    const bool counts = vm.used && MayRun(vm) && (vm.demand.waiting || vm.demand.busy) &&
                        vm.terms.share_class != ShareClass::kBackground;
    if (counts && (least < 0 || vm.virtual_ns < least)) least = vm.virtual_ns;
  }
  if (least > virtual_ns_) virtual_ns_ = least;
  const double base = least < 0 ? virtual_ns_ : std::min(virtual_ns_, least);
  for (Vm& vm : vms_) {
    if (!vm.used || (MayRun(vm) && (vm.demand.waiting || vm.demand.busy))) continue;
    const uint64_t usual = vm.wants ? terms_.full_turn_ns : terms_.turn_ns;
    const uint64_t saved =
        vm.terms.share_class == ShareClass::kLatency ? std::max(usual, kLatencySavedNs) : usual;
    const double head_start = static_cast<double>(saved) / vm.terms.weight;
    vm.virtual_ns = std::max(vm.virtual_ns, base - head_start);
  }
}

bool Arbiter::MayRun(const Vm& vm) const {
  return !vm.terms.paused && (vm.terms.cap_percent >= 100 || !vm.throttled);
}

// Its turn goes on: it has work, or the next may come soon. Time without work is charged as well, so a turn without work is cut
// short once the VM has been charged as much as the one that waits. Otherwise it would later wait for several turns.
bool Arbiter::Active(const Vm& vm, uint64_t now_ns) const {
  const uint64_t idle_ns = now_ns - std::max(turn_began_ns_, vm.last_active_ns);
  if (idle_ns < terms_.linger_ns || idle_ns >= LingerOf(vm)) return idle_ns < LingerOf(vm);
  const std::optional<size_t> next = Next();
  const int rank = Rank(vm), rank_of_next = next ? Rank(vms_[*next]) : rank + 1;
  return rank < rank_of_next || (rank == rank_of_next && vm.virtual_ns < vms_[*next].virtual_ns);
}

int Arbiter::Rank(const Vm& vm) const {
  if (vm.terms.reserve_percent != 0 && vm.reserve_ns > 0) return kRankReserved;
  if (vm.terms.share_class == ShareClass::kLatency && vm.virtual_ns <= virtual_ns_) return kRankSoon;
  // Of its floor half is saved up before it is used, because each turn costs a switch.
  const bool holds = holder_ && &vm == &vms_[*holder_];
  const double least = holds ? 0 : Percent(terms_.background_percent) * kSavedNs / 2;
  if (vm.terms.share_class == ShareClass::kBackground && vm.floor_ns <= least) return kRankBeyondFloor;
  return kRankUsual;
}

// Of those that wait and do not have the turn.
std::optional<size_t> Arbiter::Next() const {
  std::optional<size_t> best;
  for (size_t i = 0; i < vms_.size(); ++i) {
    const Vm& vm = vms_[i];
    if (!vm.used || !vm.demand.waiting || !MayRun(vm) || holder_ == i) continue;
    const int rank = Rank(vm), best_rank = best ? Rank(vms_[*best]) : rank + 1;
    if (rank < best_rank || (rank == best_rank && vm.virtual_ns < vms_[*best].virtual_ns)) best = i;
  }
  return best;
}

uint64_t Arbiter::TurnLength(uint64_t now_ns) const {
  constexpr size_t kFew = 4;
  if (now_ns - brief_ns_ > kBriefNs) return terms_.full_turn_ns;
  const uint64_t length = wanting_ > kFew ? terms_.turn_ns / 2 : terms_.turn_ns;
  // Others wait for the end of the work, too, and hardly ever longer than the turn's length for both.
  const Vm& vm = vms_[*holder_];
  return length - std::min(length / 2, vm.drain_ns + 2 * vm.drain_spread_ns);
}

// A latency VM below its share, or a VM below its reservation, does not wait for others of lower rank.
bool Arbiter::Preempts(std::optional<size_t> next) const {
  return next && Rank(vms_[*next]) < kRankUsual && Rank(vms_[*next]) < Rank(vms_[*holder_]);
}

bool Arbiter::TurnEnds(uint64_t now_ns) {
  const Vm& vm = vms_[*holder_];
  const std::optional<size_t> next = Next();
  if (vm.demand.stuck) return true;
  if (Preempts(next)) return !DrainsStill(now_ns, true);
  if (draining_) return !DrainsStill(now_ns, false);
  const bool beyond_floor = next && Rank(vm) == kRankBeyondFloor && Rank(vms_[*next]) < kRankBeyondFloor;
  if (!beyond_floor && MayRun(vm) && Active(vm, now_ns) && now_ns - turn_began_ns_ < TurnLength(now_ns))
    return false;
  // It goes on where nobody else wants the turn, or where it has had less than the one that would come.
  const bool behind = next && Rank(vm) <= Rank(vms_[*next]) && vm.virtual_ns < vms_[*next].virtual_ns;
  if (MayRun(vm) && Active(vm, now_ns) && (!next || behind)) {
    turn_began_ns_ = now_ns;
    return false;
  }
  if (!Active(vm, now_ns)) vms_[*holder_].left_ns = now_ns;
  return !DrainsStill(now_ns, false);
}

// Whether the next turn is to wait for the end of what the last one has submitted.
bool Arbiter::DrainsStill(uint64_t now_ns, bool preempted) {
  const bool busy = vms_[*holder_].demand.busy;
  if (busy && !draining_) drain_began_ns_ = now_ns;
  if (!busy) {
    const uint64_t took = draining_ ? now_ns - drain_began_ns_ : 0;
    Vm& vm = vms_[*holder_];
    const uint64_t off = std::max(took, vm.drain_ns) - std::min(took, vm.drain_ns);
    vm.drain_spread_ns += (off >> 2) - (vm.drain_spread_ns >> 2);
    vm.drain_ns += (took >> 2) - (vm.drain_ns >> 2);
  }
  draining_ = busy && !(draining_ && now_ns - drain_began_ns_ >= (preempted ? kMostPreemptNs : kMostDrainNs));
  return draining_;
}

void Arbiter::Hand(uint64_t now_ns) {
  if (holder_ && !vms_[*holder_].used) holder_.reset(), draining_ = false;
  if (holder_ && !TurnEnds(now_ns)) return;
  const std::optional<size_t> next = Next();
  draining_ = false;
  // Where nobody else wants it, work that does not end keeps its turn.
  if (!next && holder_ && MayRun(vms_[*holder_]) && Active(vms_[*holder_], now_ns)) return;
  holder_ = next;
  turn_began_ns_ = now_ns;
  if (holder_) ++vms_[*holder_].figures.turns;
}

void Arbiter::AskForMarks() {
  for (Vm& vm : vms_) {
    vm.asks = vm.used && vm.unknown && wanting_ > (vm.wants ? 1u : 0u);
    vm.unknown = vm.unknown && !vm.asks;
  }
}

// Work that does not end competes with whoever has the turn by the GPU's own round, in which each process has its slice:
// the VM's part of that is its part by weight of all. Whoever has the turn keeps the driver's slice, and stands for all others.
// One whose kernels are just longer than the limit keeps its slice between them, and none changes more often than ten times a
// second, because setting one takes the driver's lock.
void Arbiter::SetSlices(uint64_t now_ns) {
  constexpr double kLeastUs = 200, kMostUs = 16'000;
  constexpr uint64_t kKeptNs = 1'000'000'000, kLeastNs = 100'000'000;
  const auto is_long = [&](const Vm& vm) { return vm.stuck_ns != 0 && now_ns - vm.stuck_ns < kKeptNs; };
  double others = 0;
  bool any_long = false;
  for (Vm& vm : vms_) {
    if (vm.used && vm.demand.stuck) vm.stuck_ns = now_ns;
    if (vm.used && vm.wants && !is_long(vm)) others += vm.terms.weight;
    any_long = any_long || (vm.used && vm.wants && is_long(vm));
  }
  for (Vm& vm : vms_) vm.queue_us = vm.used && any_long && !is_long(vm) ? kQueueUs : 0;
  for (Vm& vm : vms_) {
    if (!vm.used || (vm.slice_ns != 0 && now_ns - vm.slice_ns < kLeastNs)) continue;
    const double part = others == 0 ? 0 : vm.terms.weight / others / std::max(1u, vm.demand.processes);
    const bool bounded = is_long(vm) && others != 0;
    const uint32_t slice_us =
        bounded ? static_cast<uint32_t>(std::clamp(terms_.slice_us * part, kLeastUs, kMostUs)) : 0;
    if (std::exchange(vm.slice_us, slice_us) != slice_us) vm.slice_ns = now_ns;
  }
}

void Arbiter::Publish(uint64_t now_ns) {
  contended_ = wanting_ > 1;
  std::optional<size_t> soon;
  if (holder_ && (draining_ || now_ns - turn_began_ns_ + kSoonNs >= TurnLength(now_ns))) soon = Next();
  hurries_ = holder_ && draining_ && soon && now_ns - drain_began_ns_ < kHurryNs;
  for (size_t i = 0; i < vms_.size(); ++i) {
    Vm& vm = vms_[i];
    if (!vm.used) continue;
    const bool bounded = vm.terms.cap_percent < 100 || vm.terms.paused;
    contended_ = contended_ || (bounded && vm.wants);
    if (holder_ == i || !vm.demand.stuck) vm.beside_ns = now_ns;
    const uint64_t since = now_ns - vm.beside_ns;
    if (since >= terms_.beside_every_ns + terms_.turn_ns) vm.beside_ns = now_ns;
    if (wanting_ <= 1 && !bounded) {
      vm.grant = Grant::kOpen;
    } else if (holder_ == i && !draining_) {
      vm.grant = Grant::kTurn;
    } else {
      const bool beside = !vm.terms.paused && vm.demand.stuck && since >= terms_.beside_every_ns;
      vm.grant = beside ? Grant::kBeside : soon == i ? Grant::kSoon : Grant::kClosed;
    }
  }
}

}  // namespace causeway::daemon
