// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/shares/link_arbiter.h"

#include <algorithm>

#include "host_backend/daemon/shares/looking.h"

namespace causeway::daemon {
namespace {

constexpr uint64_t kRecentNs = kMuchNs;
// A VM that has waited so lately wants more than it gets; one that was let go on and does nothing for so long does not,
// whatever it says: its stream may wait for something else. Both are longer than what may be under way takes beside others.
constexpr uint64_t kRecentWaitNs = 5'000'000, kBacklogNs = 3'000'000, kStalledNs = 5'000'000;
// How much of a VM may be under way, in time of the link: twice as long as threads and daemon take to see that a piece is
// done and to let the next one go (0.15 ms), and so that what a piece costs by itself (7 us on an H200) is little.
constexpr double kWindowNs = 600'000;
constexpr double kLeastWindow = 1 << 20, kMostWindow = 32 << 20;
// In windows: what a VM may be ahead of its part before it waits for the others, and what one saves up that copies less
// than its part.
constexpr double kAheadWindows = 2, kSavedWindows = 1;
// Of a VM with a cap so much is under way as it may copy in that time.
constexpr double kCapWindowNs = 10e6, kLeastCapWindow = 128 << 10;
constexpr double kMostLinkDebtNs = 1e9;
constexpr double kMostAtOnce = uint64_t{1} << 40;  // no GPU's memory is larger, so no copy is
// No link is known that carries more, in bytes a nanosecond; and how much of what it has lately carried a VM is charged
// at least while others wait for it.
constexpr double kLeastRate = 1.0, kMostRate = 64.0, kLeastPart = 0.3;
// A copy that was given to the driver at once is taken to be under way for as long as a slow link needs.
constexpr double kSlowRate = 10.0;
// What VMs copy is told in whole pieces, so that it is judged over times that are long beside one: the link's rate, which
// fades by that much in each, and whether a VM for which others wait copies at all.
constexpr double kPeriodNs = 2e6, kFade = 0.99, kKeepsPeriodNs = 5e6;

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
  Set(at, terms);
  vms_[at].virtual_bytes = virtual_bytes_;
  vms_[at].cap_bytes = CapRate(terms) * kCapBurstNs;
  return at;
}

void LinkArbiter::Set(size_t vm, const ShareTerms& terms) {
  vms_[vm].terms = terms;
  vms_[vm].terms.weight = std::clamp(terms.weight, 1u, kMostWeight);
}

bool LinkArbiter::owes(size_t vm) const {
  const Vm& one = vms_[vm];
  return one.virtual_bytes > virtual_bytes_ || one.cap_bytes < CapRate(one.terms) * kCapBurstNs;
}

// Of two that is what the link carries in that time, of more VMs so much together.
double LinkArbiter::Window() const {
  return std::clamp(rate_ * kWindowNs * 2 / std::max(active_, 2.0), kLeastWindow, kMostWindow);
}

uint32_t LinkArbiter::window_kib(size_t vm) const {
  if (vms_[vm].grant == LinkGrant::kAsleep && vms_[vm].terms.pcie_mib_per_s == 0) return 0;
  double bytes = Window();
  if (const double rate = CapRate(vms_[vm].terms); rate != 0)
    bytes = std::min(bytes, std::max(rate * kCapWindowNs, kLeastCapWindow));
  return std::max(static_cast<uint32_t>(bytes / 1024) / std::max(1u, vms_[vm].demand.waiting), 1u);
}

void LinkArbiter::Look(uint64_t now_ns, std::span<const LinkDemand> demands) {
  const uint64_t passed = now_ns > last_ns_ ? now_ns - last_ns_ : 0;
  const double counted = last_ns_ == 0 || passed > kMostBetweenLooks ? 0 : static_cast<double>(passed);
  last_ns_ = std::max(last_ns_, now_ns);
  const std::optional<size_t> was_behind = Behind(last_ns_);
  double of_all = 0;
  for (size_t i = 0; i < vms_.size(); ++i) {
    if (!vms_[i].used) continue;
    Note(vms_[i], i < demands.size() ? demands[i] : LinkDemand{}, last_ns_, counted);
    of_all += vms_[i].moved_bytes;
  }
  for (Vm& vm : vms_) Measure(vm, of_all, counted);
  if (was_behind) ChargeForWaits(vms_[*was_behind], counted);
  const std::optional<size_t> behind = Behind(last_ns_);
  Settle(behind, last_ns_);
  Publish(behind, last_ns_);
}

// A worker that was taken over can say that it has copied anything: no more counts than a link carries in that time, and one
// copy that was given to the driver before anybody looked.
void LinkArbiter::Note(Vm& vm, const LinkDemand& demand, uint64_t now_ns, double passed_ns) {
  const uint64_t moved = demand.copied < vm.demand.copied ? 0 : demand.copied - vm.demand.copied;
  const double bytes = vm.moved_bytes =
      std::min(static_cast<double>(moved), kMostAtOnce + passed_ns * kMostRate);
  if (moved != 0) {
    const double since = static_cast<double>(now_ns - vm.copied_ns);
    vm.lately_bytes = vm.lately_bytes * std::max(0.0, 1 - since / kRecentNs) + bytes;
    vm.copied_ns = vm.moved_ns = now_ns;
  }
  if (moved != 0 && vm.lately_bytes > static_cast<double>(kMuchBytes)) {
    vm.active_ns = std::max(vm.active_ns, now_ns + kRecentNs) +
                   static_cast<uint64_t>(bytes / std::max(rate_, kSlowRate));
    vm.active_ns = std::min(vm.active_ns, now_ns + kForgetNs);
  }
  if (demand.waiting != 0) vm.waited_ns = now_ns;
  if (demand.waiting != 0 && vm.throttled) vm.figures.throttled_ns += static_cast<uint64_t>(passed_ns);
  vm.demand = demand;
  vm.figures.bytes += static_cast<uint64_t>(bytes);
  // What was copied while it was alone concerns nobody.
  if (several_) vm.virtual_bytes += bytes / vm.terms.weight;
  const double rate = CapRate(vm.terms);
  vm.cap_bytes =
      std::clamp(vm.cap_bytes + rate * passed_ns - bytes, -rate * kMostLinkDebtNs, rate * kCapBurstNs);
  vm.throttled = rate != 0 && vm.cap_bytes < 0;
}

bool LinkArbiter::IsBacklogged(const Vm& vm, uint64_t now_ns) const {
  if (!vm.used || vm.terms.paused || vm.throttled || vm.waited_ns == 0 || now_ns - vm.waited_ns > kBacklogNs)
    return false;
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

// While a VM wants more than it gets and nothing holds it back, what all copy is what the link carries. It is not less if that
// VM itself hardly copies: others may wait for it.
void LinkArbiter::Measure(Vm& vm, double of_all, double passed_ns) {
  if (!vm.used || vm.grant != LinkGrant::kWindow || vm.throttled || vm.demand.waiting == 0) return;
  vm.open_ns += passed_ns;
  vm.open_bytes += vm.moved_bytes;
  vm.all_bytes += of_all;
  if (vm.open_ns < kPeriodNs) return;
  const double faded = vm.open_bytes * 8 < vm.all_bytes ? rate_ : rate_ * kFade;
  rate_ = std::clamp(std::max(vm.all_bytes / vm.open_ns, faded), kLeastRate, kMostRate);
  vm.open_ns = vm.open_bytes = vm.all_bytes = 0;
}

// Others wait for the one that is behind: it pays for that, also if it hardly copies. It has the link with those that are not held
// back either.
void LinkArbiter::ChargeForWaits(Vm& behind, double passed_ns) {
  double kept = 0, open = 0;
  for (const Vm& vm : vms_) {
    if (!vm.used || vm.terms.paused || vm.throttled || vm.demand.waiting == 0) continue;
    (vm.grant == LinkGrant::kClosed ? kept : open) += 1;
  }
  if (kept == 0) return;
  behind.keeps_ns += passed_ns / std::max(open, 1.0);
  behind.keeps_bytes += behind.moved_bytes;
  if (behind.keeps_ns < kKeepsPeriodNs) return;
  const double least = rate_ * kLeastPart * behind.keeps_ns;
  behind.virtual_bytes += std::max(least - behind.keeps_bytes, 0.0) / behind.terms.weight;
  behind.keeps_ns = behind.keeps_bytes = 0;
}

// Who does not want more than it gets saves up little.
void LinkArbiter::Settle(std::optional<size_t> behind, uint64_t now_ns) {
  if (!behind) return;
  virtual_bytes_ = std::max(virtual_bytes_, vms_[*behind].virtual_bytes);
  for (Vm& vm : vms_) {
    if (!vm.used || IsBacklogged(vm, now_ns)) continue;
    vm.virtual_bytes =
        std::max(vm.virtual_bytes, vms_[*behind].virtual_bytes - kSavedWindows * Window() / vm.terms.weight);
  }
}

void LinkArbiter::Publish(std::optional<size_t> behind, uint64_t now_ns) {
  const auto is_active = [&](const Vm& vm) {
    return vm.used && !vm.terms.paused && (vm.demand.waiting != 0 || now_ns < vm.active_ns);
  };
  // A debt is looked at until it is paid.
  const auto is_known = [&](const Vm& vm) {
    return is_active(vm) || vm.throttled || (vm.copied_ns != 0 && now_ns - vm.copied_ns < kForgetNs);
  };
  active_ = static_cast<double>(std::count_if(vms_.begin(), vms_.end(), is_active));
  several_ = active_ > 1;
  // A VM that only waits does not count as copying much, because a hostile worker can say that it waits and copy nothing.
  copying_much_ = 0;
  for (Vm& vm : vms_) {
    vm.copies_much = vm.used && !vm.terms.paused && now_ns < vm.active_ns;
    copying_much_ += vm.copies_much ? 1 : 0;
  }
  contended_ = false;
  watched_ = std::count_if(vms_.begin(), vms_.end(), is_known) > 1;
  for (Vm& vm : vms_) {
    if (!vm.used) continue;
    vm.is_known = is_known(vm);
    const bool capped = vm.terms.pcie_mib_per_s != 0;
    watched_ = watched_ || (capped && is_known(vm));
    const bool waits = vm.demand.waiting != 0 || (vm.waited_ns != 0 && now_ns - vm.waited_ns < kRecentWaitNs);
    contended_ = contended_ || (waits && !vm.terms.paused && (several_ || capped));
    const LinkGrant before = vm.grant;
    const bool ahead =
        behind && IsBacklogged(vm, now_ns) &&
        (vm.virtual_bytes - vms_[*behind].virtual_bytes) * vm.terms.weight > kAheadWindows * Window();
    if (vm.terms.paused || vm.throttled || ahead) {
      vm.grant = LinkGrant::kClosed;
    } else if (!vm.is_known) {
      vm.grant = LinkGrant::kAsleep;
    } else {
      vm.grant = several_ || capped ? LinkGrant::kWindow : LinkGrant::kOpen;
    }
    if (before == LinkGrant::kClosed && vm.grant != before) vm.moved_ns = now_ns;
  }
  // Who has not copied is looked at anyhow while the others are, and must not stay unseen when they are not.
  if (!watched_) return;
  for (Vm& vm : vms_) {
    if (!vm.used || vm.grant != LinkGrant::kAsleep) continue;
    vm.grant = several_ || vm.terms.pcie_mib_per_s != 0 ? LinkGrant::kWindow : LinkGrant::kOpen;
  }
}

}  // namespace causeway::daemon
