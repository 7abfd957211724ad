// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/shares/link_arbiter.h"

#include <algorithm>

#include "host_backend/daemon/shares/looking.h"

namespace causeway::daemon {
namespace {

constexpr uint64_t kRecentNs = 100'000'000;
// Who has waited so lately wants more than it gets; who was let go on and does nothing for so long does not, whatever it says:
// its stream may wait for something else.
constexpr uint64_t kRecentWaitNs = 5'000'000, kBacklogNs = 300'000, kStalledNs = 500'000;
constexpr double kAheadBytes = 1 << 20;  // of its part, before a VM waits for the others
constexpr double kSavedBytes = 4 << 20;  // what one saves up that copies less than its part
constexpr uint32_t kWindowKib = 1024;    // of a VM's bytes, under way at once
constexpr double kMostLinkDebtNs = 1e9;
// No link is known that carries more, in bytes a nanosecond; and how much of what it has lately carried a VM is charged
// at least while others wait for it.
constexpr double kLeastRate = 1.0, kMostRate = 64.0, kLeastPart = 0.3;
// A copy that was given to the driver at once is taken to be under way for as long as a slow link needs.
constexpr double kSlowRate = 10.0;
constexpr double kPeriodNs = 2e6, kFade = 0.99;

double CapRate(const ShareTerms& terms) {  // bytes a nanosecond
  return static_cast<double>(terms.pcie_mib_per_s) * (1 << 20) / 1e9;
}

}  // namespace

size_t LinkArbiter::Add(const ShareTerms& terms) {
  const auto free = std::find_if(vms_.begin(), vms_.end(), [](const Vm& vm) { return !vm.used; });
  const auto at = static_cast<size_t>(free - vms_.begin());
  if (free == vms_.end()) vms_.emplace_back();
  vms_[at] = Vm{};
  vms_[at].used = true;
  vms_[at].terms = terms;
  vms_[at].virtual_bytes = virtual_bytes_;
  return at;
}

uint32_t LinkArbiter::window_kib(size_t vm) const {
  return std::max(kWindowKib / std::max(1u, vms_[vm].demand.waiting), 1u);
}

void LinkArbiter::Look(uint64_t now_ns, std::span<const LinkDemand> demands) {
  const uint64_t passed = now_ns > last_ns_ ? now_ns - last_ns_ : 0;
  const double counted = last_ns_ == 0 || passed > kMostBetweenLooks ? 0 : static_cast<double>(passed);
  last_ns_ = std::max(last_ns_, now_ns);
  const std::optional<size_t> was_behind = Behind(last_ns_);
  double of_behind = 0;
  for (size_t i = 0; i < vms_.size(); ++i) {
    if (!vms_[i].used) continue;
    const uint64_t before = vms_[i].figures.bytes;
    Note(vms_[i], i < demands.size() ? demands[i] : LinkDemand{}, last_ns_, counted);
    if (was_behind == i) of_behind = static_cast<double>(vms_[i].figures.bytes - before);
  }
  if (was_behind) ChargeForWaits(*was_behind, of_behind, counted);
  const std::optional<size_t> behind = Behind(last_ns_);
  Settle(behind, last_ns_);
  Publish(behind, last_ns_);
}

// A worker that was taken over can say that it has copied anything: no more counts than a link carries in that time.
void LinkArbiter::Note(Vm& vm, const LinkDemand& demand, uint64_t now_ns, double passed_ns) {
  const uint64_t moved = demand.copied - vm.demand.copied;
  constexpr double kAtOnce = uint64_t{4}
                             << 30;  // a copy that was given to the driver before anybody else came
  const bool believed = static_cast<double>(moved) <= kAtOnce + passed_ns * kMostRate;
  const double bytes = believed ? static_cast<double>(moved) : 0;
  const bool is_new = vm.copied_ns == 0;
  if (moved != 0) {
    vm.copied_ns = vm.moved_ns = now_ns;
    vm.active_ns = std::max(vm.active_ns, now_ns + kRecentNs) +
                   static_cast<uint64_t>(bytes / std::max(rate_, kSlowRate));
    vm.active_ns = std::min(vm.active_ns, now_ns + kForgetNs);
  }
  if (demand.waiting != 0) vm.waited_ns = now_ns;
  if (demand.waiting != 0 && vm.throttled) vm.figures.throttled_ns += static_cast<uint64_t>(passed_ns);
  if (vm.grant == LinkGrant::kWindow && (moved != 0 || demand.waiting != 0)) Measure(vm, bytes, passed_ns);
  vm.demand = demand;
  vm.figures.bytes += static_cast<uint64_t>(bytes);
  // What was copied while it was alone concerns nobody.
  if (several_) vm.virtual_bytes += bytes / vm.terms.weight;
  const double rate = CapRate(vm.terms);
  // What it had copied before it was known is of another daemon's time, or of little.
  const double owed = is_new ? 0 : bytes;
  vm.cap_bytes =
      std::clamp(vm.cap_bytes + rate * passed_ns - owed, -rate * kMostLinkDebtNs, rate * kCapBurstNs);
  vm.throttled = rate != 0 && vm.cap_bytes < 0;
}

void LinkArbiter::Measure(Vm& vm, double bytes, double passed_ns) {
  vm.open_bytes += bytes;
  vm.open_ns += passed_ns;
  if (vm.open_ns < kPeriodNs) return;
  rate_ = std::clamp(std::max(vm.open_bytes / vm.open_ns, rate_ * kFade), kLeastRate, kMostRate);
  vm.open_bytes = vm.open_ns = 0;
}

bool LinkArbiter::IsBacklogged(const Vm& vm, uint64_t now_ns) const {
  if (!vm.used || vm.throttled || vm.waited_ns == 0 || now_ns - vm.waited_ns > kBacklogNs) return false;
  return vm.grant == LinkGrant::kClosed || now_ns - vm.moved_ns <= kStalledNs;
}

std::optional<size_t> LinkArbiter::Behind(uint64_t now_ns) const {
  std::optional<size_t> behind;
  for (size_t i = 0; i < vms_.size(); ++i) {
    if (IsBacklogged(vms_[i], now_ns) && (!behind || vms_[i].virtual_bytes < vms_[*behind].virtual_bytes))
      behind = i;
  }
  return behind;
}

// Others wait for the one that is behind: it pays for that, also if it hardly copies.
void LinkArbiter::ChargeForWaits(size_t behind, double copied, double passed_ns) {
  const bool keeps = std::any_of(vms_.begin(), vms_.end(), [](const Vm& vm) {
    return vm.used && !vm.throttled && vm.grant == LinkGrant::kClosed && vm.demand.waiting != 0;
  });
  const double least = rate_ * kLeastPart * passed_ns;
  if (keeps && copied < least) vms_[behind].virtual_bytes += (least - copied) / vms_[behind].terms.weight;
}

// Who does not want more than it gets saves up little.
void LinkArbiter::Settle(std::optional<size_t> behind, uint64_t now_ns) {
  if (!behind) return;
  virtual_bytes_ = std::max(virtual_bytes_, vms_[*behind].virtual_bytes);
  for (Vm& vm : vms_) {
    if (!vm.used || IsBacklogged(vm, now_ns)) continue;
    vm.virtual_bytes =
        std::max(vm.virtual_bytes, vms_[*behind].virtual_bytes - kSavedBytes / vm.terms.weight);
  }
}

void LinkArbiter::Publish(std::optional<size_t> behind, uint64_t now_ns) {
  const auto is_active = [&](const Vm& vm) {
    return vm.used && (vm.demand.waiting != 0 || now_ns < vm.active_ns);
  };
  const auto is_known = [&](const Vm& vm) {
    return is_active(vm) || (vm.copied_ns != 0 && now_ns - vm.copied_ns < kForgetNs);
  };
  several_ = std::count_if(vms_.begin(), vms_.end(), is_active) > 1;
  contended_ = false;
  watched_ = std::count_if(vms_.begin(), vms_.end(), is_known) > 1;
  for (Vm& vm : vms_) {
    if (!vm.used) continue;
    const bool capped = vm.terms.pcie_mib_per_s != 0;
    watched_ = watched_ || (capped && is_known(vm));
    const bool waits = vm.demand.waiting != 0 || (vm.waited_ns != 0 && now_ns - vm.waited_ns < kRecentWaitNs);
    contended_ = contended_ || (waits && (several_ || vm.throttled));
    const LinkGrant before = vm.grant;
    const bool ahead = behind && IsBacklogged(vm, now_ns) &&
                       (vm.virtual_bytes - vms_[*behind].virtual_bytes) * vm.terms.weight > kAheadBytes;
    if (vm.throttled || ahead) {
      vm.grant = LinkGrant::kClosed;
    } else if (several_ || capped) {
      vm.grant = LinkGrant::kWindow;
    } else {
      vm.grant = is_known(vm) ? LinkGrant::kOpen : LinkGrant::kAsleep;
    }
    if (before == LinkGrant::kClosed && vm.grant != before) vm.moved_ns = now_ns;
  }
  // Who has not copied is looked at anyhow while the others are, and must not stay unseen when they are not.
  if (!watched_) return;
  for (Vm& vm : vms_) {
    if (vm.used && vm.grant == LinkGrant::kAsleep) vm.grant = LinkGrant::kOpen;
  }
}

}  // namespace causeway::daemon
