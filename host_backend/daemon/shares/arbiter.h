// SPDX-License-Identifier: Apache-2.0
// Who may submit work to one GPU now: the rule by which turns go round among VMs, without clock, threads or
// memory of its own. The caller looks at what each VM's workers say, tells it here with the time, and passes on
// the grants. Everything is computed from what was told, so that tests run it under a clock of their own.
//
// One VM at a time has the turn, with all of its processes; the other contexts have no work then, and the GPU
// does not switch. At the end of a turn the next one begins when the work of the last is done, so that each VM is
// charged what it had, and shares are exact whatever the kernels are: the work of two VMs at once is divided by the
// GPU's own slices, and nobody can see how. Three do not wait for that: a VM of a higher rank, anybody beside work
// that does not end (`stuck`), which keeps no turn and competes by those slices, and anybody beside what a dying process has left (`leaves`).
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "host_backend/common/shares/share_terms.h"
#include "host_backend/common/shares/turn_words.h"

namespace causeway::daemon {

// What the workers of one VM say of one GPU, added up. Hostile guests may have written it: a lie changes what its own VM gets, and
// takes from nobody else more than a part by weight of what that one is charged.
struct Demand {
  bool waiting = false;  // a record waits, for the turn or for room in what may be outstanding
  bool busy = false;     // work that was submitted is not known to be finished
  bool stuck = false;    // busy, and nothing was finished for so long that it may need more work to end
  // Work is left of processes that have begun to end. Its end is often told to nobody, because the GPU writes no marks for a process
  // that has died. So it keeps nobody waiting, and is paid for as long as it may well be there.
  bool leaves = false;
  uint64_t submitted = 0;  // a count that grows with every submission
  // How many processes have work, while `busy` or `leaves` is true. The GPU's own round gives each process the same time; one whose time
  // slice was set counts as that slice divided by the driver's own.
  double contexts = 1;
  uint32_t processes = 1;  // that have work
};

struct TurnTerms {
  uint64_t turn_ns = 2'000'000;  // the longest turn while others want it; 1 ms with more than four
  // The same while all have so much to do that turns end by their length: fewer switches.
  uint64_t full_turn_ns = 8'000'000;
  // How long a turn lasts in which nothing comes: longer for a VM that comes back soon after it, shorter for others.
  uint64_t least_linger_ns = 50'000, linger_ns = 100'000, most_linger_ns = 400'000;
  uint64_t recent_ns = 30'000'000;  // who submitted so lately wants the GPU
  uint32_t slice_us = 2048;         // the driver's own
  uint64_t beside_every_ns =
      100'000'000;                  // how often a stuck VM may submit beside others, for one turn's length
  uint32_t background_percent = 2;  // the floor of a background VM
};

// What one VM had; all in nanoseconds since it was added.
struct ShareFigures {
  uint64_t had_ns = 0;        // GPU time that it is charged for
  uint64_t due_ns = 0;        // what it could have had: its part by weight of the time in which it wanted
  uint64_t waited_ns = 0;     // in which its work waited for a turn
  uint64_t throttled_ns = 0;  // in which it waited because of its cap, or because it was paused
  uint64_t turns = 0;
};

// Not for several threads.
class Arbiter {
 public:
  explicit Arbiter(const TurnTerms& terms = {}) : terms_(terms) {}

  // A VM begins to use the GPU; its number, which a VM that has ended may have had.
  size_t Add(const ShareTerms& terms);
  void Remove(size_t vm);
  // In force at the next Look.
  void Set(size_t vm, const ShareTerms& terms);
  void SetTurns(const TurnTerms& terms) { terms_ = terms; }

  // `demands`: by number, as many as VMs were added. The time never goes back; if it does, nothing is charged.
  void Look(uint64_t now_ns, std::span<const Demand> demands);

  Grant grant(size_t vm) const { return vms_[vm].grant; }
  // What it submitted while nobody else wanted the GPU may still be there, and somebody else wants it now: its workers are to put
  // a mark behind it. True for one look.
  bool asks(size_t vm) const { return vms_[vm].asks; }
  // The time slice of each process of the VM; 0: the driver's own.
  uint32_t slice_us(size_t vm) const { return vms_[vm].slice_us; }
  // How much each process of the VM is to have queued in its turn (GrantWords::queue_us); 0: as little as keeps the GPU fed.
  uint32_t queue_us(size_t vm) const { return vms_[vm].queue_us; }
  const ShareFigures& figures(size_t vm) const { return vms_[vm].figures; }
  // Somebody has to wait for somebody: look again within tens of microseconds.
  bool contended() const { return contended_; }
  // A turn is just ending: look again at once.
  bool hurries() const { return hurries_; }
  // It has used up more than others of its part, or something of its cap: its next session is to begin with that.
  bool owes(size_t vm) const;
  size_t size() const { return vms_.size(); }

 private:
  struct Vm {
    bool used = false;
    ShareTerms terms;
    Grant grant = Grant::kOpen;
    bool unknown = false;  // it has submitted without marks, and was not asked since
    bool asks = false;
    uint32_t slice_us = 0;
    uint64_t slice_ns = 0;  // since when
    uint32_t queue_us = 0;
    uint64_t stuck_ns = 0;  // when its work was last seen not to end; 0: never
    ShareFigures figures;
    Demand demand;
    double virtual_ns = 0;   // charged time by weight
    double cap_ns = 0;       // what it may still use; below 0: debt
    double reserve_ns = 0;   // what it is owed first
    double floor_ns = 0;     // the same of a background VM
    bool throttled = false;  // its cap is used up, until something of it is there again
    // How long its work goes on after its turns, and by how much that differs from one to the next: means of the last ones.
    uint64_t drain_ns = 0, drain_spread_ns = 0;
    uint64_t linger_ns = 0;  // 0: as the terms say
    uint64_t left_ns = 0;    // when it last lost a turn because nothing came; 0: it has come back
    bool lingered = false;   // it has gone on in its turn after a while without work, since it last came back
    uint64_t last_submission_ns = 0;
    uint64_t last_active_ns = 0;  // when it last submitted, had work or wanted to
    uint64_t beside_ns = 0;       // when it last could submit without the turn, or had it
    bool submitted = false;       // between the last two looks
    bool wants = false;
    // It has done all that it had to do, and will come back; what it had been charged by then, and how many times running that was
    // less than a turn.
    bool idle = false;
    uint64_t idle_had_ns = 0;
    uint32_t brief = 0;
  };
  void Note(Vm& vm, const Demand& demand, uint64_t now_ns);
  void Refill(Vm& vm, double passed_ns);
  void Charge(double passed_ns);
  bool MayRun(const Vm& vm) const;
  bool Active(const Vm& vm, uint64_t now_ns) const;
  void Limit(Vm& vm) const;
  void Settle();
  // Smaller goes first.
  int Rank(const Vm& vm) const;
  std::optional<size_t> Next() const;
  bool Preempts(std::optional<size_t> next) const;
  bool TurnEnds(uint64_t now_ns);
  bool DrainsStill(uint64_t now_ns, bool preempted);
  void NoteReturn(Vm& vm, uint64_t now_ns) const;
  void NoteIdle(Vm& vm, uint64_t now_ns);
  uint64_t LingerOf(const Vm& vm) const { return vm.linger_ns != 0 ? vm.linger_ns : terms_.linger_ns; }
  uint64_t TurnLength(uint64_t now_ns) const;
  void Hand(uint64_t now_ns);
  void Publish(uint64_t now_ns);
  void SetSlices(uint64_t now_ns);
  void AskForMarks();

  TurnTerms terms_;
  std::vector<Vm> vms_;
  std::optional<size_t> holder_;
  bool draining_ = false;  // the holder's turn is over, and its work is not
  uint64_t drain_began_ns_ = 0;
  bool hurries_ = false;
  uint64_t turn_began_ns_ = 0;
  uint64_t last_ns_ = 0;
  uint64_t brief_ns_ = 0;  // when somebody was last done with little, several times running
  double virtual_ns_ = 0;  // of a VM that always wanted the GPU and had its share
  size_t wanting_ = 0;
  bool contended_ = false;
};

}  // namespace causeway::daemon
