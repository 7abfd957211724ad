// SPDX-License-Identifier: Apache-2.0
// The one place that decides how to wait: spin, then yield, then sleep. Every sleep is bounded, so a lost
// wake-up costs time, never a hang; a wake-up by futex is an optimisation where both sides share a kernel.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <mutex>

#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/ring.h"

namespace causeway {

struct WaitPolicy {
  uint32_t spin_us = 50;
  uint32_t yield_us = 200;
  uint32_t first_sleep_us = 20;          // where nothing wakes us, and on one processor
  uint32_t max_sleep_us = 1000;          // where nothing wakes us
  uint32_t max_futex_sleep_us = 10'000;  // where the peer does: the bound is only for a peer that forgets to;
                                         // sleeps grow to it, from 10 ms
  uint32_t waited_share =
      1;  // no sleep but the first is longer than this part (1/n) of the time waited so far
  uint32_t nap_after_us = 0;  // of a wait that is expected to be long: so long one spins, and then naps
};

// Of CLOCK_MONOTONIC.
uint64_t NowUs();

// Those that the calling thread may run on: containers and programs leave fewer than the machine has.
uint32_t UsableProcessors();
// The same at the first call, for all.
uint32_t KnownProcessors();

// Policies by the processors that there are. With two of them spinning starves the peer that is waited for,
// so it is short; with one there is none: who is waited for, or another thread of the program, could run
// meanwhile.
// A guest thread: for its answer.
WaitPolicy ReplyPolicy(bool futex, uint32_t processors = KnownProcessors());
// The same where the program asked for a wait that costs no processor.
WaitPolicy BlockingPolicy(uint32_t processors = KnownProcessors());
// A guest thread: for what may come at any time, or never.
WaitPolicy PatientPolicy(bool futex, uint32_t processors = KnownProcessors());
// A host thread: for work.
WaitPolicy IdlePolicy(uint32_t processors = KnownProcessors());
// A guest thread: for words that the GPU writes, which wakes nobody.
WaitPolicy DevicePolicy(uint32_t processors = KnownProcessors());
// A host thread: for another to execute what comes before.
WaitPolicy OrderPolicy(uint32_t processors = KnownProcessors());

// How long spinning for work has paid lately. What comes after the longest spin that is worth while halves
// it, what would have come within that doubles it. Work that keeps coming in the same step is met by who
// naps until shortly before it.
class SpinBudget {
 public:
  explicit SpinBudget(uint32_t most_us) : most_us_(most_us), us_(most_us) {}
  uint32_t us() const { return us_; }
  void Note(uint64_t waited_us);
  // Of a wait that outlasts the spin, if the last two such agree; else 0.
  uint64_t expected_us() const;
  // For how long one spins around its end: timers are late, and waits of one kind differ.
  static constexpr uint32_t kMeetUs = 200;

 private:
  const uint32_t most_us_;
  uint32_t us_;
  uint64_t last_us_ = 0, before_us_ = 0;  // that outlasted it
};

// What waits of a kind took: most of a long one can be slept through, and its end is then met spinning.
class WaitHistory {
 public:
  // How long the next one of that kind will take at the least: the shorter of its last two.
  uint64_t Expected(uint32_t kind) const;
  void Note(uint32_t kind, uint64_t us);

 private:
  static constexpr uint32_t kKinds = 16;
  static uint32_t PlaceOf(uint32_t kind) { return (kind * 0x9e3779b1u) >> 28; }
  struct Entry {
    uint32_t kind = 0;
    uint32_t last_us = 0, before_us = 0;
  };
  Entry entries_[kKinds];
};

// The first looks of a wait under that policy, before there is a Waiter: what comes within a microsecond or
// so is met by nothing but looks. Whether it came.
inline bool ComesAtOnce(const WaitPolicy& policy, auto ready) {
  constexpr uint32_t kLooks = 32;
  for (uint32_t i = policy.spin_us != 0 ? kLooks : 1; !ready(); _mm_pause()) {
    if (--i == 0) return false;
  }
  return true;
}

// One wait:  Waiter w(...); for (;;) { v = low half of the word; if (ready) break; w.Step(v); }
class Waiter {
 public:
  // `word` is the peer's counter whose change ends the wait; `waiting` is ours, set to 1 while we sleep so
  // that the peer knows to call Wake(). `futex` only where both sides run on one kernel.
  // `expected_us`: how long it will take at the least, as far as is known.
  Waiter(const WaitPolicy& policy, const HotWord* word, HotWord* waiting, bool futex,
         uint64_t expected_us = 0);
  ~Waiter();
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // The flag is up already, since then: of the looks before the first sleep only what is left is made.
  void FlagIsUp(uint64_t since_us);
  void Step(uint32_t seen);
  // True about every 10 ms of sleep: time to check that the peer lives.
  bool TimeToCheckPeer();
  // Before the first sleep the peer can see for so long that we are about to, see SleepFor().
  static constexpr uint32_t kSettleUs = 4;
  // Exact to some 32 steps.
  uint64_t waited_us() const { return now_us_ - began_us_; }

 private:
  void Settle();
  void Sleep(uint32_t seen);
  void Nap(uint32_t seen);
  void SleepFor(uint32_t seen, uint64_t us);

  WaitPolicy policy_;
  const HotWord* word_;
  HotWord* waiting_;
  bool futex_;
  uint32_t spins_ = 0;
  uint32_t sleep_us_ = 0;
  uint64_t nap_us_ = 0;  // to sleep until so much of the wait has passed
  bool flag_up_ = false;
  uint64_t began_us_ = 0;
  uint64_t looks_from_us_ = 0;  // since when it spins
  uint64_t checked_us_ = 0;
  uint64_t now_us_ = 0;
};

// Wakes all who sleep until the word changes.
void WakeSleepers(const HotWord& word);
// Wakes the peer if it says that it sleeps. Call after publishing `word`.
inline void Wake(const HotWord& word, const HotWord& peer_waiting, bool futex) {
  if (futex && LoadAcquire(peer_waiting) != 0) WakeSleepers(word);
}

// Takes a lock that is given back within a microsecond, and that many threads may want all the time.
void AwaitLock(std::unique_lock<std::mutex>& lock);
inline void LockBriefly(std::unique_lock<std::mutex>& lock) {
  if (!lock.try_lock()) AwaitLock(lock);
}

}  // namespace causeway
