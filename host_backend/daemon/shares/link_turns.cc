// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/shares/link_turns.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "host_backend/daemon/shares/looking.h"
#include "ivshmem_ring/system/futex.h"

namespace causeway::daemon {

void LinkTurns::Open(const std::string& share, const std::string& scope, uint32_t worker,
                     const ShareTerms& terms, const LinkWords& words, const Bytes& before,
                     LinkGrantWords& grant) {
  const auto [member, is_new] = members_.try_emplace(share);
  for (uint32_t direction = 0; is_new && direction < kLinkDirections; ++direction)
    member->second.vm[direction] = arbiters_[direction].Add(terms);
  member->second.workers[{scope, worker}] = {&words, &grant, before};
  Set(share, terms);  // which may be others than when its last session ended
}

void LinkTurns::Close(const std::string& share, const std::string& scope, uint32_t worker, uint64_t now_ns) {
  const auto member = members_.find(share);
  if (member == members_.end()) return;
  auto& workers = member->second.workers;
  const auto found = workers.find({scope, worker});
  if (found == workers.end()) return;
  const Worker closed = found->second;
  workers.erase(found);
  // All workers of a scope have one grant, so that it is in force while one of them lives.
  const bool lives = std::any_of(workers.begin(), workers.end(),
                                 [&](const auto& other) { return other.first.first == scope; });
  for (uint32_t direction = 0; direction < kLinkDirections; ++direction) {
    member->second.ended[direction] += closed.Copied(direction);
    if (!lives) Publish(closed, direction, LinkGrant::kAsleep, 0, OtherCopies::kNone);
  }
  member->second.left_ns = now_ns;
}

void LinkTurns::Forget(uint64_t now_ns) {
  for (auto at = members_.begin(); at != members_.end();) {
    const auto member = at++;
    if (!member->second.workers.empty()) continue;
    bool owes = false;
    for (uint32_t direction = 0; direction < kLinkDirections; ++direction)
      owes = owes || arbiters_[direction].owes(member->second.vm[direction]);
    if (owes && now_ns - member->second.left_ns < kOwedNs) continue;
    for (uint32_t direction = 0; direction < kLinkDirections; ++direction)
      arbiters_[direction].Remove(member->second.vm[direction]);
    members_.erase(member);
  }
}

// What is less than before is a lie.
uint64_t LinkTurns::Worker::Copied(uint32_t direction) const {
  const uint64_t copied = words->copied[direction].load(std::memory_order_relaxed);
  return copied - std::min(copied, before[direction]);
}

void LinkTurns::Set(const std::string& share, const ShareTerms& terms) {
  const auto member = members_.find(share);
  if (member == members_.end()) return;
  for (uint32_t direction = 0; direction < kLinkDirections; ++direction)
    arbiters_[direction].Set(member->second.vm[direction], terms);
}

// A scope that is paused wants nothing on behalf of the others of its share.
LinkDemand LinkTurns::DemandOf(const Member& member, uint32_t direction, const IsPaused& is_paused) {
  LinkDemand demand{.copied = member.ended[direction], .waiting = 0};
  for (const auto& [name, worker] : member.workers) {
    demand.copied += worker.Copied(direction);
    const bool waits = worker.words->waiting[direction].load(std::memory_order_relaxed) != 0;
    demand.waiting += waits && !is_paused(name.first) ? 1 : 0;
  }
  return demand;
}

void LinkTurns::Publish(const Worker& worker, uint32_t direction, LinkGrant grant, uint32_t window_kib,
                        OtherCopies others) {
  LinkGrantWords& words = *worker.grant;
  words.others_copy[direction].store(static_cast<uint32_t>(others), std::memory_order_relaxed);
  words.window_kib[direction].store(window_kib, std::memory_order_relaxed);
  const auto value = static_cast<uint32_t>(grant);
  const uint32_t before = words.grant[direction].load(std::memory_order_relaxed);
  if (before == value) return;
  words.grant[direction].store(value, std::memory_order_release);
  if (static_cast<LinkGrant>(before) == LinkGrant::kClosed)
    FutexWakeAll(&words.grant[direction], FutexOf::kAllProcesses);
}

NextLook LinkTurns::Look(uint64_t now_ns, const IsPaused& is_paused) {
  NextLook next = NextLook::kNone;
  for (uint32_t direction = 0; direction < kLinkDirections; ++direction) {
    LinkArbiter& arbiter = arbiters_[direction];
    std::vector<LinkDemand> demands(arbiter.size());
    for (const auto& [share, member] : members_)
      demands[member.vm[direction]] = DemandOf(member, direction, is_paused);
    arbiter.Look(now_ns, demands);
    for (const auto& [share, member] : members_) {
      const size_t vm = member.vm[direction];
      const bool several = member.workers.size() > 1;
      const OtherCopies others = arbiter.others_copy(vm)              ? OtherCopies::kAnotherVm
                                 : several && arbiter.copies_much(vm) ? OtherCopies::kThisVm
                                                                      : OtherCopies::kNone;
      // What is told has to end some time, and of several workers one may begin to copy much.
      if (others != OtherCopies::kNone || (several && arbiter.is_known(vm)))
        next = std::max(next, NextLook::kSlow);
      for (const auto& [name, worker] : member.workers) {
        const bool paused = is_paused(name.first);
        worker.grant->seen_ns.store(now_ns, std::memory_order_release);
        Publish(worker, direction, paused ? LinkGrant::kClosed : arbiter.grant(vm), arbiter.window_kib(vm),
                others);
        // It is to be told again and again, because a grant counts for a while only.
        if (paused) next = std::max(next, NextLook::kSlow);
      }
    }
    next = std::max(next, arbiter.contended() ? NextLook::kFast
                          : arbiter.watched() ? NextLook::kWatch
                                              : NextLook::kNone);
  }
  return next;
}

LinkFigures LinkTurns::FiguresOf(const std::string& share, uint32_t direction) const {
  const auto member = members_.find(share);
  return member == members_.end() ? LinkFigures{}
                                  : arbiters_[direction].figures(member->second.vm[direction]);
}

}  // namespace causeway::daemon
