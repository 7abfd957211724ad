// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/shares/turns.h"

#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "host_backend/daemon/shares/looking.h"
#include "ivshmem_ring/system/futex.h"

namespace causeway::daemon {
namespace {

// Between looks: while somebody waits for somebody; while several VMs are active and at most one of them wants the
// GPU; and where a pause alone is to be kept in force, or a debt is to be paid.
constexpr std::chrono::microseconds kFastNap{30}, kWatchNap{1'000}, kSlowNap{10'000};
constexpr uint64_t kLongestNapNs = std::chrono::nanoseconds(kSlowNap).count();
static_assert(2 * kLongestNapNs <= kMostBetweenLooks && 2 * kLongestNapNs < kGrantLifeNs);

// Below how many microseconds so many of the waits were.
double WaitOf(const std::array<uint64_t, kWaitPlaces>& waits, double part) {
  uint64_t all = 0, seen = 0;
  for (const uint64_t count : waits) all += count;
  for (size_t at = 0; at < waits.size() && all != 0; ++at) {
    seen += waits[at];
    if (static_cast<double>(seen) >= part * static_cast<double>(all))
      return static_cast<double>(uint64_t{1} << at);
  }
  return 0;
}

}  // namespace

void Turns::AddWaits(const Scope& scope, std::array<uint64_t, kWaitPlaces>* waits) {
  for (const auto& [number, cell] : scope.cells) {
    for (size_t at = 0; at < waits->size(); ++at)
      (*waits)[at] += scope.page->turn_cell(number).waits[at].load(std::memory_order_relaxed);
  }
}

Turns::~Turns() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

ShareTerms Turns::TermsOf(const std::string& name) const {
  const auto found = terms_.find(name);
  return found == terms_.end() ? ShareTerms{} : found->second;
}

void Turns::AskForTerms(std::function<ShareTerms(const std::string& scope)> terms_of) {
  const std::lock_guard lock(mutex_);
  terms_of_ = std::move(terms_of);
}

void Turns::Set(const std::string& scope, const ShareTerms& terms) {
  {
    const std::lock_guard lock(mutex_);
    if (!terms_.contains(scope)) return;
    terms_[scope] = terms;
    for (auto& [device, gpu] : gpus_) {
      const auto member = gpu.members.find(scope);
      if (member == gpu.members.end()) continue;
      gpu.arbiter.Set(member->second.vm, terms);
      gpu.link.Set(scope, terms);
    }
    wanted_ = true;
  }
  changed_.notify_one();
}

void Turns::SetTurns(std::function<TurnTerms(uint64_t device)> terms) {
  const std::lock_guard lock(mutex_);
  turns_ = std::move(terms);
  for (auto& [device, gpu] : gpus_) gpu.arbiter.SetTurns(turns_(device));
}

void Turns::Open(const std::string& scope, const std::string& share, AccountPage* page, uint32_t cell,
                 const TurnGpus& gpus) {
  {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = scopes_.try_emplace(scope);
    Scope& known = entry->second;
    if (is_new) known.share = share, known.gpus = gpus;
    known.gpus.Add(gpus);
    for (const std::string& name : {scope, known.share}) {
      if (!terms_.contains(name)) terms_[name] = terms_of_ ? terms_of_(name) : ShareTerms{};
    }
    known.page = page;
    Cell& place = known.cells[cell] = {};
    for (uint32_t device = 0; device < kAccountDevices; ++device) {
      for (uint32_t direction = 0; direction < kLinkDirections; ++direction) {
        const LinkWords& words = page->turn_cell(cell).links[device];
        place.copied[device][direction] = words.copied[direction].load(std::memory_order_relaxed);
      }
    }
    // A worker of a daemon of before is at work already, and its VM may be paused.
    wanted_ = true;
    if (has_thread_ && !thread_.joinable()) thread_ = std::thread([this] { Run(); });
  }
  changed_.notify_one();
}

void Turns::Ends(const std::string& scope, uint32_t cell) {
  const std::lock_guard lock(mutex_);
  const auto known = scopes_.find(scope);
  if (known == scopes_.end()) return;
  for (auto& [device, gpu] : gpus_) {
    const auto member = gpu.members.find(known->second.share);
    if (member == gpu.members.end()) continue;
    const auto part = member->second.parts.find(scope);
    if (part != member->second.parts.end()) part->second.watch.Ends(cell);
  }
}

void Turns::Close(const std::string& scope, uint32_t cell) {
  const std::lock_guard lock(mutex_);
  const auto known = scopes_.find(scope);
  if (known == scopes_.end() || known->second.cells.erase(cell) == 0) return;
  const std::string share = known->second.share;
  const uint64_t now = now_();
  for (auto& [device, gpu] : gpus_) CloseOn(gpu, share, scope, cell, now);
  Forget(now);
  if (!known->second.cells.empty()) return;
  scopes_.erase(known);
  terms_.erase(scope);  // asked for again
  const bool is_used = std::any_of(scopes_.begin(), scopes_.end(), [&](const auto& other) {
    return other.second.share == share || other.first == share;
  });
  if (!is_used) terms_.erase(share);
}

// What a share owes outlives its last session: else short processes would have no cap, and no part by weight.
void Turns::Forget(uint64_t now_ns) {
  for (auto at = gpus_.begin(); at != gpus_.end();) {
    Gpu& gpu = at->second;
    std::erase_if(gpu.members, [&](const auto& entry) {
      const Member& member = entry.second;
      if (!member.parts.empty() || (gpu.arbiter.owes(member.vm) && now_ns - member.left_ns < kOwedNs))
        return false;
      gpu.arbiter.Remove(member.vm);
      return true;
    });
    gpu.link.Forget(now_ns);
    at = gpu.members.empty() && gpu.link.empty() ? gpus_.erase(at) : std::next(at);
  }
}

void Turns::CloseOn(Gpu& gpu, const std::string& share, const std::string& scope, uint32_t cell,
                    uint64_t now_ns) {
  gpu.link.Close(share, scope, cell, now_ns);
  const auto member = gpu.members.find(share);
  if (member == gpu.members.end()) return;
  auto& parts = member->second.parts;
  const auto part = parts.find(scope);
  if (part == parts.end()) return;
  part->second.watch.Close(cell);
  if (!part->second.watch.empty()) return;
  Publish(part->second, Grant::kAsleep, {}, 0);
  // The sum of submissions must change for what was submitted, and for nothing else.
  member->second.ended += part->second.watch.Look(0).submitted;
  parts.erase(part);
  if (!parts.empty()) return;
  member->second.left_ns = now_ns;
  member->second.capped = TermsOf(share).cap_percent < 100;
}

void Turns::Wake() {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = true;
  }
  changed_.notify_one();
}

// Each place of a cell is taken for a device once, whatever a worker that was taken over writes there later, and a scope
// has as many devices as its page has grants. Of devices that its workers cannot open it has none.
void Turns::Discover() {
  for (auto& [name, scope] : scopes_) {
    for (auto& [number, cell] : scope.cells) {
      for (uint32_t place = 0; place < kAccountDevices; ++place) {
        const uint64_t device = scope.page->cell(number).device[place].load(std::memory_order_acquire);
        if (device == 0 || (cell.places >> place & 1) != 0) continue;
        cell.places |= 1u << place;
        Join(device, name, number, place);
      }
    }
  }
}

void Turns::Join(uint64_t device, const std::string& scope, uint32_t cell, uint32_t place) {
  const Scope& known = scopes_.at(scope);
  if (!known.gpus.Allows(device)) return;
  GrantWords* const grant = known.page->MakeGrantOn(device);
  if (grant == nullptr) return;
  Gpu& gpu = gpus_.try_emplace(device, turns_(device)).first->second;
  const auto [member, is_new] = gpu.members.try_emplace(known.share);
  if (is_new) member->second.vm = gpu.arbiter.Add(TermsOf(known.share));
  // It may have been away, and have had others.
  gpu.arbiter.Set(member->second.vm, TermsOf(known.share));
  Part& part = member->second.parts[scope];
  part.grant = grant;
  part.watch.Open(cell, known.page->turn_cell(cell).turns[place]);
  gpu.link.Open(known.share, scope, cell, TermsOf(known.share), known.page->turn_cell(cell).links[place],
                known.cells.at(cell).copied[place], known.page->LinkOf(*grant));
}

// A scope that is paused alone wants nothing on behalf of the others.
Demand Turns::DemandOf(Member& member, uint64_t now_ns) const {
  Demand all;
  all.submitted = member.ended;
  all.contexts = all.processes = 0;
  bool moves = false;
  for (auto& [scope, part] : member.parts) {
    const Demand demand = part.watch.Look(now_ns, part.grant->slice_us.load(std::memory_order_relaxed));
    all.waiting = all.waiting || (demand.waiting && (member.parts.size() == 1 || !IsPaused(scope)));
    all.busy = all.busy || demand.busy;
    all.leaves = all.leaves || demand.leaves;
    all.contexts += demand.busy || demand.leaves ? demand.contexts : 0;
    all.processes += demand.busy || demand.leaves ? demand.processes : 0;
    all.submitted += demand.submitted;
    moves = moves || (demand.busy && !demand.stuck);
  }
  all.stuck = all.busy && !moves;
  if (!all.busy && !all.leaves) all.contexts = all.processes = 1;
  return all;
}

void Turns::Publish(Member& member, Grant grant, const News& news, uint64_t now_ns) const {
  for (auto& [scope, part] : member.parts)
    Publish(part, IsPaused(scope) ? Grant::kClosed : grant, news, now_ns);
}

void Turns::Publish(Part& part, Grant grant, const News& news, uint64_t now_ns) {
  GrantWords& words = *part.grant;
  const bool other_slice = words.slice_us.load(std::memory_order_relaxed) != news.slice_us;
  words.slice_us.store(news.slice_us, std::memory_order_release);
  words.queue_us.store(news.queue_us, std::memory_order_relaxed);
  words.seen_ns.store(now_ns, std::memory_order_release);
  if (news.asks || other_slice) {
    words.news.fetch_add(1, std::memory_order_release);
    FutexWakeAll(&words.news, FutexOf::kAllProcesses);
  }
  const auto value = static_cast<uint32_t>(grant);
  const uint32_t before = words.grant.load(std::memory_order_relaxed);
  if (before == value) return;
  // Before it is: what passes from then on has no marks.
  if (grant == Grant::kOpen || grant == Grant::kAsleep)
    words.openings.fetch_add(1, std::memory_order_release);
  words.grant.store(value, std::memory_order_release);
  if (static_cast<Grant>(before) == Grant::kClosed || static_cast<Grant>(before) == Grant::kBeside)
    FutexWakeAll(&words.grant, FutexOf::kAllProcesses);
}

// At most one VM uses the GPU: it need not ask, and whoever comes wakes this thread.
NextLook Turns::Rest(Gpu& gpu, uint64_t now_ns) {
  gpu.in_turns = false;
  NextLook next = NextLook::kNone;
  for (auto& [share, member] : gpu.members) {
    const bool active = now_ns - member.active_ns < kForgetNs && member.active_ns != 0;
    const bool paused = IsPaused(share);
    Publish(member, paused ? Grant::kClosed : active ? Grant::kOpen : Grant::kAsleep, {}, now_ns);
    const bool any = std::any_of(member.parts.begin(), member.parts.end(),
                                 [this](const auto& part) { return IsPaused(part.first); });
    if (paused || any) next = NextLook::kSlow;
  }
  return next;
}

NextLook Turns::Look(Gpu& gpu, uint64_t now_ns) {
  std::vector<Demand> demands(gpu.arbiter.size());
  size_t active = 0;
  bool bounded = false, untold = false;
  for (auto& [share, member] : gpu.members) {
    const Demand demand = DemandOf(member, now_ns);
    if (demand.submitted != member.demand.submitted || demand.waiting || demand.busy || demand.leaves)
      member.active_ns = now_ns;
    member.demand = demands[member.vm] = demand;
    const bool is_there = !member.parts.empty();
    const bool is_active = is_there && now_ns - member.active_ns < kForgetNs && member.active_ns != 0;
    const ShareTerms terms = is_active ? TermsOf(share) : ShareTerms{};
    active += is_active ? 1 : 0;
    bounded = bounded || (terms.cap_percent < 100 && !terms.paused) || (!is_there && member.capped);
    untold = untold || (is_there && !is_active && member.told != demand.submitted);
  }
  // Of one that is not active any more something may be left that it submitted alone.
  const bool asks = untold && active == 1;
  if (active <= 1 && !bounded && !asks) return Rest(gpu, now_ns);
  gpu.arbiter.Look(now_ns, demands);
  gpu.in_turns = gpu.arbiter.contended();
  for (auto& [share, member] : gpu.members) {
    member.told = member.demand.submitted;
    Publish(member, gpu.arbiter.grant(member.vm),
            {gpu.arbiter.slice_us(member.vm), gpu.arbiter.asks(member.vm), gpu.arbiter.queue_us(member.vm)},
            now_ns);
  }
  if (gpu.arbiter.hurries()) return NextLook::kAtOnce;
  if (gpu.in_turns) return NextLook::kFast;
  return active == 0 ? NextLook::kSlow : NextLook::kWatch;  // none is active: one that has ended owes time
}

NextLook Turns::LookAtLink(Gpu& gpu, uint64_t now_ns) const {
  return gpu.link.Look(now_ns, [this](const std::string& scope) { return IsPaused(scope); });
}

NextLook Turns::Look() {
  const std::lock_guard lock(mutex_);
  return LookLocked();
}

NextLook Turns::LookLocked() {
  if (std::exchange(wanted_, false)) Discover();
  const uint64_t now = now_();
  Forget(now);
  NextLook next = NextLook::kNone;
  for (auto& [device, gpu] : gpus_) next = std::max({next, Look(gpu, now), LookAtLink(gpu, now)});
  return next;
}

void Turns::Run() {
  prctl(PR_SET_NAME, "causewayd-turns");
  prctl(PR_SET_TIMERSLACK, 1);
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const NextLook next = LookLocked();
    const auto is_wanted = [this] { return stop_ || wanted_; };
    switch (next) {
      case NextLook::kNone:
        changed_.wait(lock, is_wanted);
        break;
      case NextLook::kSlow:
        changed_.wait_for(lock, kSlowNap, is_wanted);
        break;
      case NextLook::kWatch:
        changed_.wait_for(lock, kWatchNap, is_wanted);
        break;
      case NextLook::kFast:
        lock.unlock();
        std::this_thread::sleep_for(kFastNap);
        lock.lock();
        break;
      case NextLook::kAtOnce:  // some hundred microseconds at most
        lock.unlock();
        sched_yield();
        lock.lock();
        break;
    }
  }
}

std::vector<ShareStatus> Turns::Status() const {
  const std::lock_guard lock(mutex_);
  std::vector<ShareStatus> all;
  for (const auto& [device, gpu] : gpus_) {
    for (const auto& [share, member] : gpu.members) {
      if (member.parts.empty()) continue;
      ShareStatus status{share, {}, device, TermsOf(share), gpu.arbiter.figures(member.vm), gpu.in_turns};
      for (uint32_t direction = 0; direction < kLinkDirections; ++direction)
        status.link[direction] = gpu.link.FiguresOf(share, direction);
      std::array<uint64_t, kWaitPlaces> waits{};
      for (const auto& [scope, part] : member.parts) {
        status.scopes.push_back(scope);
        AddWaits(scopes_.at(scope), &waits);
      }
      status.wait_p50_us = WaitOf(waits, 0.5);
      status.wait_p99_us = WaitOf(waits, 0.99);
      status.wait_longest_us = WaitOf(waits, 1);
      all.push_back(std::move(status));
    }
  }
  return all;
}

}  // namespace causeway::daemon
