// SPDX-License-Identifier: Apache-2.0
// One direction of a GPU's link, the processes that copy over it, their workers' gates and the daemon's arbiter under one virtual
// clock, for tests of how its bytes are divided. Gates, shared words and arbiter are the product's. Nothing here takes real
// time, and each run gives the same.
//
// What was measured on an H200 is in it: 55 GB/s; a process pauses behind each piece, because its mark goes to the GPU in
// the same stream by another of its queues; and neither a worker that sleeps nor the daemon sees anything at once.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "host_backend/common/shares/turn_words.h"
#include "host_backend/daemon/shares/link_arbiter.h"
#include "host_backend/worker/gate/link_gate.h"

namespace causeway::test {

struct VirtualCopier {
  size_t vm = 0;
  uint64_t copy_bytes = uint64_t{1} << 30;  // one copy after the other
  uint64_t gap_ns = 0;                      // from the end of one to the next
  uint64_t call_ns = 2'000;                 // what giving a piece to the driver takes its worker
  bool waits = false;                       // for the end of each copy
  bool stalls = false;                      // its stream waits for something else: nothing of it gets on
  bool lies = false;                        // its worker says that it waits and hardly copies

  uint64_t left = 0, next_ns = 0, asked_ns = 0, finished = 0, bytes = 0;
  uint64_t waits_from_ns = 0;                  // since when it waits for the gate; 0: it does not
  uint64_t rests_until_ns = 0;                 // its next piece does not begin before
  bool sleeps = false;                         // until its VM is open again
  size_t copies_under_way = 0, under_way = 0;  // and pieces of them
  std::vector<uint64_t> latencies_ns{};
};

class VirtualLink {
 public:
  static constexpr uint64_t kTickNs = 1'000, kLookNs = 40'000, kWatchNs = 1'000'000, kBytesPerTick = 55'000;
  static constexpr double kBytesPerS = 55e9;
  static constexpr uint32_t kDirection = kToDevice;

  // How the GPU serves copies of several processes: first come first served, or all at once.
  explicit VirtualLink(bool in_order) : in_order_(in_order) {}

  size_t AddVm(const ShareTerms& terms) {
    vm_bytes.push_back(0);
    grants.emplace_back();
    opened_ns_.push_back(0);
    return arbiter.Add(terms);
  }
  VirtualCopier& Start(const VirtualCopier& copier) {
    copiers.push_back(copier);
    workers.push_back(std::make_unique<Worker>(*this, copiers.size() - 1, grants[copier.vm]));
    return copiers.back();
  }

  // Runs for so long, and returns what each VM had of it, from 0 to 1.
  std::vector<double> Run(uint64_t nanoseconds) {
    const std::vector<uint64_t> before = vm_bytes;
    for (const uint64_t end = now_ns + nanoseconds; now_ns < end; now_ns += kTickNs) {
      for (size_t i = 0; i < copiers.size(); ++i) Submit(copiers[i], *workers[i]);
      Carry();
      if (now_ns >= next_look_ns_ && !arbiter_hangs) Look();
    }
    std::vector<double> shares;
    const double all = static_cast<double>(nanoseconds / kTickNs * kBytesPerTick);
    for (size_t i = 0; i < vm_bytes.size(); ++i)
      shares.push_back(static_cast<double>(vm_bytes[i] - before[i]) / all);
    return shares;
  }

  uint64_t now_ns = kLookNs;
  daemon::LinkArbiter arbiter;
  std::deque<VirtualCopier> copiers;
  std::deque<LinkGrantWords> grants;  // by VM
  std::vector<uint64_t> vm_bytes;
  bool arbiter_hangs = false;
  // How long a thread that sleeps takes from what wakes it to its next call, and the link from the end of a piece to the
  // beginning of the next one of the same process.
  uint64_t reaction_ns = 150'000, gap_per_piece_ns = 7'000;
  uint64_t marks = 0;
  uint64_t most_queued_bytes = 0;  // that were given to the driver and not copied

 private:
  struct Piece {
    size_t copier;
    uint64_t left;
    bool last;                                                         // of its copy
    std::vector<std::pair<std::atomic<uint32_t>*, uint32_t>> marks{};  // words and values behind it
  };
  struct Worker final : host::Surroundings {
    Worker(VirtualLink& of, size_t number, const LinkGrantWords& grant)
        : link(of), copier(number), gate(grant, words, *this) {}
    uint64_t NowNs() override { return link.now_ns; }
    bool Mark(std::atomic<uint32_t>& word, uint32_t value) override {
      ++link.marks;
      const auto own = std::find_if(link.pieces_.rbegin(), link.pieces_.rend(),
                                    [this](const Piece& piece) { return piece.copier == copier; });
      if (own == link.pieces_.rend()) {  // all of it is done
        word = value;
      } else {
        own->marks.emplace_back(&word, value);
      }
      return true;
    }
    void Wake() override {
      link.next_look_ns_ = std::min(link.next_look_ns_, link.now_ns + link.reaction_ns);
    }
    void Sleep(const std::atomic<uint32_t>&, uint32_t, uint64_t) override {}
    VirtualLink& link;
    const size_t copier;
    LinkWords words{};
    host::LinkGate gate;
  };

  void Submit(VirtualCopier& copier, Worker& worker) {
    if (copier.lies) worker.words.waiting[kDirection] = 1;
    if (copier.lies && now_ns % 400'000 == 0) ++worker.words.copied[kDirection];
    if (copier.lies || now_ns < copier.next_ns || Sleeps(copier)) return;
    if (copier.left == 0) {
      if (copier.copies_under_way >= (copier.waits ? 1 : 2)) return;
      ++copier.copies_under_way;
      copier.left = copier.copy_bytes;
      copier.asked_ns = now_ns;
    }
    const uint64_t piece = worker.gate.Enter(kDirection, copier.left, kAtOnce);
    worker.words.waiting[kDirection] = piece == 0 ? 1 : 0;
    if (piece == 0) return Wait(copier);
    copier.waits_from_ns = 0;
    copier.left -= piece;
    ++copier.under_way;
    pieces_.push_back({worker.copier, piece, copier.left == 0});
    worker.gate.Leave(kDirection, piece, false);
    copier.next_ns = now_ns + copier.call_ns;
    uint64_t queued = 0;
    for (const Piece& each : pieces_) queued += each.left;
    most_queued_bytes = std::max(most_queued_bytes, queued);
  }

  // As LinkGate::Await: a thread looks again at once for a while, and then naps.
  void Wait(VirtualCopier& copier) {
    if (copier.waits_from_ns == 0) copier.waits_from_ns = now_ns;
    if (IsClosed(copier.vm)) {
      copier.sleeps = true;
    } else if (now_ns - copier.waits_from_ns >= host::LinkGate::kPieceSpinNs) {
      copier.next_ns = now_ns + host::LinkGate::kPieceNapNs + reaction_ns / 2;
    }
  }
  bool IsClosed(size_t vm) const {
    return grants[vm].grant[kDirection] == static_cast<uint32_t>(LinkGrant::kClosed);
  }
  // A thread that sleeps because its VM is closed, until some time after the daemon has woken it.
  bool Sleeps(VirtualCopier& copier) {
    if (copier.sleeps && !IsClosed(copier.vm) && now_ns >= opened_ns_[copier.vm] + reaction_ns)
      copier.sleeps = false;
    return copier.sleeps;
  }

  // The oldest piece of each process, or of all.
  std::vector<size_t> Served() const {
    std::vector<size_t> served;
    std::vector<bool> seen(copiers.size());
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const VirtualCopier& copier = copiers[pieces_[i].copier];
      if (seen[pieces_[i].copier] || copier.stalls) continue;
      seen[pieces_[i].copier] = true;
      if (now_ns < copier.rests_until_ns) continue;
      served.push_back(i);
      if (in_order_) break;
    }
    return served;
  }

  void Carry() {
    uint64_t carried = kBytesPerTick;
    while (carried != 0) {
      const std::vector<size_t> served = Served();
      if (served.empty()) return;
      const uint64_t each = std::max<uint64_t>(1, carried / served.size());
      std::vector<size_t> finished;
      for (const size_t i : served) {
        const uint64_t bytes = std::min({each, pieces_[i].left, carried});
        pieces_[i].left -= bytes;
        carried -= bytes;
        vm_bytes[copiers[pieces_[i].copier].vm] += bytes;
        if (pieces_[i].left == 0) finished.push_back(i);
      }
      std::for_each(finished.rbegin(), finished.rend(), [this](size_t i) { Finish(i); });
    }
  }

  void Finish(size_t at) {
    const Piece piece = pieces_[at];
    pieces_.erase(pieces_.begin() + static_cast<std::ptrdiff_t>(at));
    VirtualCopier& copier = copiers[piece.copier];
    for (const auto& [word, value] : piece.marks) *word = value;
    if (!piece.marks.empty()) copier.rests_until_ns = now_ns + kTickNs + gap_per_piece_ns;
    --copier.under_way;
    if (!piece.last) return;
    ++copier.finished;
    --copier.copies_under_way;
    copier.latencies_ns.push_back(now_ns + kTickNs - copier.asked_ns);
    copier.next_ns = std::max(copier.next_ns, now_ns + copier.gap_ns);
  }

  // As Turns::Run, which sleeps while nobody copies.
  void Look() {
    std::vector<daemon::LinkDemand> demands(arbiter.size());
    for (size_t i = 0; i < copiers.size(); ++i) {
      daemon::LinkDemand& demand = demands[copiers[i].vm];
      demand.copied += workers[i]->words.copied[kDirection];
      demand.waiting += workers[i]->words.waiting[kDirection] != 0 ? 1 : 0;
    }
    arbiter.Look(now_ns, demands);
    next_look_ns_ = arbiter.contended() ? now_ns + kLookNs
                    : arbiter.watched() ? now_ns + kWatchNs
                                        : std::numeric_limits<uint64_t>::max();
    for (size_t i = 0; i < demands.size(); ++i) {
      grants[i].seen_ns = now_ns;
      grants[i].window_kib[kDirection] = arbiter.window_kib(i);
      const bool was_closed = IsClosed(i);
      grants[i].grant[kDirection] = static_cast<uint32_t>(arbiter.grant(i));
      if (was_closed && !IsClosed(i)) opened_ns_[i] = now_ns;
    }
  }

  const bool in_order_;
  uint64_t next_look_ns_ = 0;
  // A thread that would wait is told so instead: time goes on for all at once.
  static inline const std::atomic<bool> kAtOnce{true};
  std::deque<Piece> pieces_;
  std::vector<uint64_t> opened_ns_;  // by VM
  std::vector<std::unique_ptr<Worker>> workers;
};

}  // namespace causeway::test
