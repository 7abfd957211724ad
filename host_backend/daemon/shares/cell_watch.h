// SPDX-License-Identifier: Apache-2.0
// What the workers of one VM say of themselves in their TurnWords, made into what the arbiter is told of the VM.
// A worker that was taken over may have written anything: each word is read once, nothing of it is an index or a
// length, and what it can change is what its own VM gets.
#pragma once
#include <array>
#include <cstdint>
#include <map>

#include "host_backend/common/shares/turn_words.h"
#include "host_backend/daemon/shares/arbiter.h"

namespace causeway::daemon {

// Of one VM on one GPU. One thread.
class CellWatch {
 public:
  // A worker begins or has ended; `cell` is the caller's number for it. The words outlive the pair.
  void Open(uint32_t cell, const TurnWords& words);
  void Close(uint32_t cell);
  // Its worker has begun to end: what it has submitted, or still submits, counts, and keeps nobody waiting (Demand::leaves). From the
  // next look on it is taken for work that is left, for 50 ms; a process that has died leaves none for longer.
  void Ends(uint32_t cell);
  bool empty() const { return cells_.empty(); }

  // `granted_us`: the time slice that this VM was last told to set (0: the driver's own). A worker that says to have set another
  // one counts as if it had the driver's.
  Demand Look(uint64_t now_ns, uint32_t granted_us = 0);

 private:
  struct Cell {
    const TurnWords* words = nullptr;
    std::array<uint32_t, kTurnMarks> done{};
    bool ends = false;
    uint64_t ends_ns = 0;  // when that was first looked at
  };
  std::map<uint32_t, Cell> cells_;
  uint64_t ended_ = 0;        // what the workers that have ended had submitted
  uint64_t progress_ns_ = 0;  // when work was last seen to be finished, or there was none
};

}  // namespace causeway::daemon
