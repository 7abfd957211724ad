// SPDX-License-Identifier: Apache-2.0
// Whose copies may go over one direction of one GPU's link now: the rule by which bytes are divided by weight, without clock,
// threads or memory of its own, as arbiter.h. The caller tells it what each VM's workers have copied.
//
// Each VM's bytes are counted, divided by its weight. One that wants more than it gets, and is ahead of another such VM, waits
// until that one has caught up. Nothing is assumed of how the GPU serves copies of several processes, or how fast the link is. Who
// does not use its part keeps nobody waiting.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "host_backend/common/shares/link_words.h"
#include "host_backend/common/shares/share_terms.h"

namespace causeway::daemon {

// What the workers of one VM say of one direction, added up. Hostile guests may have written it.
struct LinkDemand {
  uint64_t copied = 0;   // a count of bytes that only grows
  uint32_t waiting = 0;  // workers that hold back a copy
};

// Since the VM was added.
struct LinkFigures {
  uint64_t bytes = 0;
  uint64_t throttled_ns = 0;  // in which a copy waited because of the VM's cap
};

// Not for several threads.
class LinkArbiter {
 public:
  // A VM begins to use the GPU; its number, which a VM that has ended may have had.
  size_t Add(const ShareTerms& terms);
  void Remove(size_t vm) { vms_[vm] = Vm{}; }
  // In force at the next Look.
  void Set(size_t vm, const ShareTerms& terms);

  // `demands`: by number, as many as VMs were added. Where the time goes back, or jumps, nothing is given or charged.
  void Look(uint64_t now_ns, std::span<const LinkDemand> demands);

  LinkGrant grant(size_t vm) const { return vms_[vm].grant; }
  // How much of each worker of the VM may be under way. 0: the VM sleeps, and nothing is to be held back when it comes back.
  uint32_t window_kib(size_t vm) const;
  // Whether the VM, or another one, has copied much lately.
  bool copies_much(size_t vm) const { return vms_[vm].copies_much; }
  bool others_copy(size_t vm) const { return copying_much_ > (vms_[vm].copies_much ? 1 : 0); }
  // Whether it has copied within the last second, or owes.
  bool is_known(size_t vm) const { return vms_[vm].is_known; }
  const LinkFigures& figures(size_t vm) const { return vms_[vm].figures; }
  // Somebody waits for somebody, or for its cap: look again within tens of microseconds.
  bool contended() const { return contended_; }
  // Somebody may copy, or wait, without telling: look again within a millisecond.
  bool watched() const { return watched_; }
  // It is ahead of the others, or has used up something of its cap: its next session is to begin with that.
  bool owes(size_t vm) const;
  size_t size() const { return vms_.size(); }

 private:
  struct Vm {
    bool used = false;
    ShareTerms terms;
    LinkGrant grant = LinkGrant::kAsleep;
    bool is_known = false, copies_much = false;
    LinkFigures figures;
    LinkDemand demand;
    double virtual_bytes = 0;  // copied, by weight
    double cap_bytes = 0;      // what it may still copy; below 0: debt
    uint64_t copied_ns = 0;    // when it last copied; 0: never
    uint64_t active_ns = 0;    // until when what it copied may be under way, and a little longer
    uint64_t waited_ns = 0;    // when it last waited
    uint64_t moved_ns = 0;     // when it last copied or was let go on
    double lately_bytes = 0;   // that it copied within the last tenth of a second or so
    double moved_bytes = 0;    // that it copied since the look before
    // Towards the link's next rate: how long it wanted more and nothing held it back, and what it and all copied meanwhile.
    double open_ns = 0, open_bytes = 0, all_bytes = 0;
    double keeps_ns = 0, keeps_bytes = 0;  // how long others waited for it, and what it copied meanwhile
    bool throttled = false;
  };
  void Note(Vm& vm, const LinkDemand& demand, uint64_t now_ns, double passed_ns);
  bool IsBacklogged(const Vm& vm, uint64_t now_ns) const;
  std::optional<size_t> Behind(uint64_t now_ns) const;
  double Window() const;  // what may be under way of a VM, in bytes
  void Measure(Vm& vm, double of_all, double passed_ns);
  void ChargeForWaits(Vm& behind, double passed_ns);
  void Settle(std::optional<size_t> behind, uint64_t now_ns);
  void Publish(std::optional<size_t> behind, uint64_t now_ns);

  std::vector<Vm> vms_;
  uint64_t last_ns_ = 0;
  double virtual_bytes_ = 0;  // of the one that was last behind
  double rate_ = 10.0;        // what the link was lately seen to carry, in bytes a nanosecond
  double active_ = 0;         // how many VMs copy
  int copying_much_ = 0;      // VMs
  bool several_ = false;
  bool contended_ = false, watched_ = false;
};

}  // namespace causeway::daemon
