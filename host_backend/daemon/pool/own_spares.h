// SPDX-License-Identifier: Apache-2.0
// Spare workers that are kept for one scope alone (own_spares of a VM or user): no other scope can take them,
// however many sessions it asks for, and they are made again first of all.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "host_backend/daemon/pool/worker_queue.h"

namespace causeway::daemon {

class OwnSpares {
 public:
  using Counts = std::map<std::string, uint32_t>;  // of scopes
  using Time = SpareUse::Time;

  explicit OwnSpares(Counts wanted = {});

  uint32_t total() const { return total_; }
  const Counts& wanted() const { return wanted_; }
  // The scope for which a spare should be started: it has fewer ready spares of its own than it should, and
  // of all such scopes was given the fewest lately. "": no scope lacks any.
  std::string Lacking(const Counts& ready, const SpareUse& use, Time now) const;
  // The scope for which a spare is kept that has just become ready; "": for none. While sessions wait, every
  // second spare goes to them, so that a scope that uses up its spares as they come keeps no others waiting.
  std::string ForReady(const Counts& ready, bool sessions_wait, const SpareUse& use, Time now);

 private:
  const Counts wanted_;
  uint32_t total_ = 0;
  bool last_was_kept_ = false;  // of the spares that became ready while sessions waited, the last was kept
};

}  // namespace causeway::daemon
