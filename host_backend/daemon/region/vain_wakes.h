// SPDX-License-Identifier: Apache-2.0
// How many wake-ups in vain the words of a region may cost. A guest can write that a thread of its worker sleeps where none
// does, and each such word costs a system call. What a region has cost is its debt, of which each look at all regions pays one
// call; a region in debt is passed over. So n looks make at most n + kMostDebt + kMostOfSlot calls in vain for one region, whatever
// it writes, and the sleepers of its own sessions alone wait for that. For one thread.
#pragma once
#include <cstdint>
#include <map>

#include "ivshmem_ring/transport/layout.h"

namespace causeway::daemon {

class Region;

class VainWakes {
 public:
  static constexpr uint32_t kMostDebt = 64;
  // A look at one slot makes no more: one for its submission queue and one for each channel.
  static constexpr uint32_t kMostOfSlot = kChannelCount + 1;

  // A look at all regions begins.
  void Begin() {
    for (auto debt = debts_.begin(); debt != debts_.end();)
      debt = --debt->second == 0 ? debts_.erase(debt) : ++debt;
  }
  // Whether the region's next slot is looked at.
  bool MayLook(const Region* region) const {
    const auto debt = debts_.find(region);
    return debt == debts_.end() || debt->second <= kMostDebt;
  }
  // A look at one of its slots has made so many calls in vain.
  void Add(const Region* region, uint32_t calls) {
    if (calls != 0) debts_[region] += calls;
  }

 private:
  std::map<const Region*, uint32_t> debts_;  // of regions that have any; none is looked into
};

}  // namespace causeway::daemon
