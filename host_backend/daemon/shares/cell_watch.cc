// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/shares/cell_watch.h"

#include <algorithm>

namespace causeway::daemon {
namespace {

constexpr double kDriversSliceUs = 2048;

}  // namespace

void CellWatch::Open(uint32_t cell, const TurnWords& words) {
  cells_[cell].words = &words;
}

// The sum of submissions must change for what has changed, and for nothing else.
void CellWatch::Close(uint32_t cell) {
  const auto found = cells_.find(cell);
  if (found == cells_.end()) return;
  ended_ += found->second.words->submitted.load(std::memory_order_relaxed);
  cells_.erase(found);
}

void CellWatch::Ends(uint32_t cell) {
  const auto found = cells_.find(cell);
  if (found != cells_.end()) found->second.ends = true;
}

Demand CellWatch::Look(uint64_t now_ns, uint32_t granted_us) {
  Demand demand;
  demand.submitted = ended_;
  demand.contexts = 0;
  demand.processes = 0;
  bool progress = false;
  for (auto& [number, cell] : cells_) {
    const TurnWords& words = *cell.words;
    demand.submitted += words.submitted.load(std::memory_order_relaxed);
    demand.waiting = demand.waiting || (!cell.ends && words.waiting.load(std::memory_order_relaxed) != 0);
    bool busy = words.unmarked.load(std::memory_order_acquire) != 0;
    for (uint32_t slot = 0; slot < kTurnMarks; ++slot) {
      const uint32_t done = words.done[slot].load(std::memory_order_acquire);
      busy = busy || done != words.sent[slot].load(std::memory_order_acquire);
      progress = progress || done != cell.done[slot];
      cell.done[slot] = done;
    }
    if (!busy) continue;
    if (cell.ends && cell.ends_ns == 0) cell.ends_ns = now_ns;
    if (cell.ends && now_ns - cell.ends_ns > kNothingFinishedNs) continue;
    (cell.ends ? demand.leaves : demand.busy) = true;
    ++demand.processes;
    const bool obeys = granted_us != 0 && words.slice_us.load(std::memory_order_relaxed) == granted_us;
    demand.contexts += obeys ? granted_us / kDriversSliceUs : 1;
  }
  if (demand.processes == 0) demand.contexts = demand.processes = 1;
  if (progress || !demand.busy) progress_ns_ = now_ns;
  demand.stuck = demand.busy && now_ns - progress_ns_ > kNothingFinishedNs;
  return demand;
}

}  // namespace causeway::daemon
