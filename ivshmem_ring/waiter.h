// SPDX-License-Identifier: Apache-2.0
// The one place that decides how to wait: spin, then yield, then sleep. Every sleep is bounded, so a lost
// wake-up costs time, never a hang; a wake-up by futex is an optimisation where both sides share a kernel.
#pragma once
#include <cstdint>

#include "ivshmem_ring/layout.h"

namespace causeway {

struct WaitPolicy {
  uint32_t spin_us = 50;
  uint32_t yield_us = 200;
  uint32_t first_sleep_us = 20;          // the most that a missed wake-up costs, see Waiter::Sleep()
  uint32_t max_sleep_us = 1000;          // where nothing wakes us
  uint32_t max_futex_sleep_us = 10'000;  // where the peer does: the bound is only for a peer that forgets to
  uint32_t waited_share =
      1;  // no sleep but the first is longer than this part (1/n) of the time waited so far
};

// Policies sized for this machine: with one or two processors spinning starves the peer that is waited for.
WaitPolicy ReplyPolicy();   // a guest thread waiting for its answer
WaitPolicy IdlePolicy();    // a host thread waiting for work
WaitPolicy DevicePolicy();  // a guest thread watching words that the GPU writes, which wakes nobody

// One wait:  Waiter w(...); for (;;) { v = low half of the word; if (ready) break; w.Step(v); }
class Waiter {
 public:
  // `word` is the peer's counter whose change ends the wait; `waiting` is ours, set to 1 while we sleep so
  // that the peer knows to call Wake(). `futex` only where both sides run on one kernel.
  Waiter(const WaitPolicy& policy, const HotWord* word, HotWord* waiting, bool futex);
  ~Waiter();
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  void Step(uint32_t seen);
  // True about every 10 ms of sleep: time to check that the peer lives.
  bool TimeToCheckPeer();

 private:
  void Sleep(uint32_t seen);

  WaitPolicy policy_;
  const HotWord* word_;
  HotWord* waiting_;
  bool futex_;
  uint32_t spins_ = 0;
  uint32_t sleep_us_ = 0;
  uint64_t began_us_ = 0;
  uint64_t checked_us_ = 0;
  uint64_t now_us_ = 0;
};

// Wakes the peer if it says that it sleeps. Call after publishing `word`.
void Wake(const HotWord& word, const HotWord& peer_waiting, bool futex);

}  // namespace causeway
