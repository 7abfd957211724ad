// SPDX-License-Identifier: Apache-2.0
// The one place that decides how to wait for the other side: spin, then yield, then sleep (docs/waiting.md).
// Every sleep is bounded, so a lost wake-up costs time and never a hang. A wake-up by futex is an
// optimisation where both sides share a kernel. Times are in microseconds of CLOCK_MONOTONIC.
//
// Threads: a Waiter, a WaitHistory and a SpinBudget belong to one thread at a time.
#pragma once
#include <xmmintrin.h>

#include <cstdint>
#include <mutex>

#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/ring.h"

namespace causeway {

// How long to spin and to sleep.
struct WaitPolicy {
  uint32_t spin_us = 50;
  // After spinning, yield for so long. A yield tells whether others want to run here (crowding.h). Beside a
  // thread that never sleeps it costs a time slice, so there are none in a crowd.
  uint32_t yield_us = 0;
  uint32_t first_sleep_us = 20;  // where no peer wakes this thread, and on one processor
  uint32_t max_sleep_us = 1000;  // where no peer wakes this thread
  // Where the peer wakes this thread; the bound is only for a peer that fails to. Sleeps grow to it, from 10
  // ms on.
  uint32_t max_futex_sleep_us = 10'000;
  // No sleep but the first is longer than 1/waited_share of the time waited so far.
  uint32_t waited_share = 1;
  // In a wait that is expected to be long: spin for so long, and then begin with timed sleeps.
  uint32_t nap_after_us = 0;
  // Where the peer's waking comes late: before the sleep that it ends, for so long, sleeps by a timer, of kTimedSleepUs at least and of
  // half of the time waited so far.
  uint32_t timed_us = 0;
  static constexpr uint32_t kTimedSleepUs = 50;
  // So often a spinning thread asks, by a yield, whether others want to run here; 0: never. Where nobody wants
  // to, a yield takes 0.3 us.
  uint32_t ask_us = 25;
};

// The time of CLOCK_MONOTONIC.
uint64_t NowUs();

// How many processors the calling thread may run on: containers and programs may allow fewer than the machine
// has.
uint32_t UsableProcessors();
// What UsableProcessors said at the first call, by any thread.
uint32_t KnownProcessors();
// The other side of this process's sessions runs under another kernel, on the host of this VM, and so never on a processor that this
// process has. Said when a session is opened, before a thread waits for it. Not for what serves VMs: their processors are threads of its host.
void PeerIsElsewhere();
// Whether the other side can run while the calling thread does. Otherwise spinning only keeps it from doing so.
bool PeerRunsBeside();
// For how many processors a wait that begins now is planned: all that are known, or, for a peer elsewhere, many, unless other threads
// want them (crowding.h): then for one, or, beside threads that do not sleep, for kCrowded. Where one is known it is one.
uint32_t FreeProcessors();
inline constexpr uint32_t kCrowded = 0;

// Policies by the number of processors. With two of them spinning may starve the peer for which this thread
// waits, so it is short. With one there is no spinning, so that the peer, or another thread of the program,
// can run meanwhile. For kCrowded no wait yields: who waits for a reply spins for as long as a peer needs that is
// woken and answers at once, then sleeps, and the host's threads sleep until they are woken.
//
// A guest thread waits for its reply.
WaitPolicy ReplyPolicy(bool futex, uint32_t processors = FreeProcessors());
// The same in a no-spin wait: the program asked for one that costs no processor time.
WaitPolicy BlockingPolicy(uint32_t processors = FreeProcessors());
// A guest thread waits for what may come at any time, or never.
WaitPolicy PatientPolicy(bool futex, uint32_t processors = FreeProcessors());
// A thread of the worker waits for work.
WaitPolicy IdlePolicy(uint32_t processors = FreeProcessors());
// A guest thread waits for a word that the GPU writes; the GPU wakes no thread.
WaitPolicy DevicePolicy(uint32_t processors = FreeProcessors());
// A thread of the worker waits until other threads have executed the records that come before its own.
WaitPolicy OrderPolicy(uint32_t processors = FreeProcessors());

// How long it pays to spin for work. Work that comes later than the longest spin that is worth while halves
// the time, work that would have come within that doubles it. Where work keeps coming in the same step, the
// thread sleeps until shortly before it is due and meets it spinning (expected_us).
class SpinBudget {
 public:
  explicit SpinBudget(uint32_t most_us) : most_us_(most_us), us_(most_us) {}
  uint32_t us() const { return us_; }
  // A wait for work took so long.
  void Note(uint64_t waited_us);
  // How long a wait that outlasts the spin takes, if the last two such waits agree; else 0.
  uint64_t expected_us() const;
  // How long the thread spins around the expected end: timers are late, and waits of one kind differ.
  static constexpr uint32_t kMeetUs = 200;

 private:
  const uint32_t most_us_;
  uint32_t us_;
  uint64_t last_us_ = 0, before_us_ = 0;  // the last two waits that outlasted the spin
};

// How long the dispatcher lets posted records gather instead of being woken for each. That pays where many come before its next
// wait and nobody waits for them: then the time doubles, otherwise some waits, ever more of them, pass before it is tried again.
class GatherPace {
 public:
  // How a sleep in which records may gather ended: nobody slept, its time was over, enough records had come, or somebody waits for what
  // was posted.
  enum class End { kNoSleep, kTime, kFull, kHurried };
  // The dispatcher begins to wait, having taken so many records in all. The result is for how long they may gather; 0: this wait ends
  // with the first.
  uint32_t Begin(uint64_t taken);
  // After Begin, unless that was 0. `some`: records have come.
  void Note(End end, bool some);

 private:
  static constexpr uint64_t kWorthwhile = 4;
  static constexpr uint32_t kLeastUs = 250, kMostUs = 1000, kMostLeftOut = 64;
  void LeaveOut();

  uint64_t taken_ = 0;
  bool gathered_ = false, hurried_ = false;  // in the wait before
  uint32_t us_ = kLeastUs;
  uint32_t left_out_ = 0, next_left_out_ = 1;
};

// How long waits of a kind took, so that a thread can sleep through most of a long one and meet its end
// spinning.
class WaitHistory {
 public:
  // How long the next wait of that kind will take at least: the shorter of the last two. 0: unknown.
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

// Polls `ready` for a microsecond or so, before a Waiter is made: what comes that soon needs nothing else.
// The result is whether it came. Where nothing can come meanwhile, there is one look.
inline bool ComesAtOnce(auto ready) {
  constexpr uint32_t kLooks = 32;
  for (uint32_t i = PeerRunsBeside() ? kLooks : 1; !ready(); _mm_pause()) {
    if (--i == 0) return false;
  }
  return true;
}

// How sides that share no kernel wake each other (docs/doorbells.md). Any thread, several at once.
class Bell {
 public:
  virtual ~Bell() = default;
  // Sleeps until the low half of the word differs from `seen`, and at most for so long. It may return early.
  virtual void Sleep(const HotWord& word, uint32_t seen, uint64_t us) const = 0;
  // Wakes the peer's threads that sleep and whose word has changed.
  virtual void Ring() const = 0;
};

// One wait. Its use:  Waiter w(...); for (;;) { v = low half of the word; if (ready) break; w.Step(v); }
class Waiter {
 public:
  // `word` is the peer's counter whose change ends the wait. `waiting` is this side's word, 1 while the
  // thread sleeps, so that the peer knows to call Wake(); null if no peer wakes it. `wakes`: the peer does,
  // by `bell`, or by futex where that is null, which is for sides that run on one kernel. `expected_us`: how long the
  // wait will take at least, as far as is known. Words and bell outlive the Waiter.
  Waiter(const WaitPolicy& policy, const HotWord* word, HotWord* waiting, bool wakes,
         uint64_t expected_us = 0, const Bell* bell = nullptr);
  ~Waiter();
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // `waiting` is 1 already, since that time. Before the first sleep the thread polls only for what is left of
  // kSettleUs.
  void FlagIsUp(uint64_t since_us);
  // Spins, yields or sleeps once. `seen` is the low half of `word` that the caller found not to be enough.
  void Step(uint32_t seen);
  // True about every 10 ms of sleep: it is time to check that the peer lives.
  bool TimeToCheckPeer();
  // Before the first sleep `waiting` is 1 for so long, and the thread still polls, so that a peer that did
  // not see it is hardly ever missed. This saves a barrier in Wake(); see SleepFor() and docs/waiting.md.
  static constexpr uint32_t kSettleUs = 4;
  // How long the wait has taken, exact to some 32 steps.
  uint64_t waited_us() const { return now_us_ - began_us_; }

 private:
  void Yield();
  void Settle();
  void Sleep(uint32_t seen);
  void SleepByTimer(uint64_t us);
  void Nap(uint32_t seen);
  void SleepFor(uint32_t seen, uint64_t us);

  WaitPolicy policy_;
  const HotWord* word_;
  HotWord* waiting_;
  bool wakes_;
  const Bell* bell_;
  uint32_t spins_ = 0;
  uint32_t sleep_us_ = 0;
  uint64_t nap_us_ = 0;  // the first sleep lasts until so much of the wait has passed
  bool flag_up_ = false;
  uint64_t began_us_ = 0;
  uint64_t looks_from_us_ = 0;  // since when the thread spins
  uint64_t checked_us_ = 0;
  uint64_t asked_us_ = 0;  // when it last yielded, or began to spin
  uint64_t now_us_ = 0;
};

// Wakes all threads that sleep until the word changes.
void WakeSleepers(const HotWord& word);
// WakeSleepers, or Bell::Ring where there is a bell.
void WakePeer(const HotWord& word, const Bell* bell);
// Wakes the peer, if that is possible (`wakes`) and `peer_waiting` says that it sleeps. To be called after `word` was
// published.
inline void Wake(const HotWord& word, const HotWord& peer_waiting, bool wakes, const Bell* bell = nullptr) {
  if (wakes && LoadAcquire(peer_waiting) != 0) WakePeer(word, bell);
}

// Takes a lock that is held for a microsecond at most, but that many threads may want all the time: the
// thread tries ever more rarely, then sleeps for a moment. A queue of sleepers would cost a system call for
// each.
void AwaitLock(std::unique_lock<std::mutex>& lock);
inline void LockBriefly(std::unique_lock<std::mutex>& lock) {
  if (!lock.try_lock()) AwaitLock(lock);
}

}  // namespace causeway
