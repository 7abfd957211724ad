// SPDX-License-Identifier: Apache-2.0
// Spin, yield, bounded sleep.
#include "ivshmem_ring/waiter.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "ivshmem_ring/ring.h"

namespace causeway {
namespace {

constexpr uint32_t kSpinsPerClockRead = 32;
constexpr uint64_t kPeerCheckUs = 10'000;

uint64_t NowUs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

const uint32_t* FutexWord(const HotWord& word) {
  return reinterpret_cast<const uint32_t*>(&word.value);
}

bool FewProcessors() {
  static const bool few = sysconf(_SC_NPROCESSORS_ONLN) <= 2;
  return few;
}

}  // namespace

WaitPolicy ReplyPolicy() {
  if (FewProcessors()) return {.spin_us = 2, .yield_us = 100, .first_sleep_us = 20, .max_sleep_us = 500};
  return {.spin_us = 100, .yield_us = 400, .first_sleep_us = 20, .max_sleep_us = 1000};
}

WaitPolicy IdlePolicy() {
  if (FewProcessors()) return {.spin_us = 2, .yield_us = 50, .first_sleep_us = 20, .max_sleep_us = 1000};
  return {.spin_us = 300, .yield_us = 0, .first_sleep_us = 20, .max_sleep_us = 1000};
}

// A function that is due after a long kernel may start later by a small part of the kernel's time.
WaitPolicy DevicePolicy() {
  WaitPolicy policy{.spin_us = 50, .yield_us = 50, .first_sleep_us = 10, .max_sleep_us = 1000};
  if (FewProcessors()) policy.spin_us = 2;
  policy.waited_share = 32;
  return policy;
}

Waiter::Waiter(const WaitPolicy& policy, const HotWord* word, HotWord* waiting, bool futex)
    : policy_(policy), word_(word), waiting_(waiting), futex_(futex), sleep_us_(policy.first_sleep_us) {}

Waiter::~Waiter() {
  if (sleep_us_ != policy_.first_sleep_us && waiting_ != nullptr) StoreRelease(*waiting_, 0);
}

void Waiter::Step(uint32_t seen) {
  _mm_pause();
  if (++spins_ % kSpinsPerClockRead != 0 && now_us_ - began_us_ < policy_.spin_us) return;
  now_us_ = NowUs();
  if (began_us_ == 0) began_us_ = checked_us_ = now_us_;
  const uint64_t waited_us = now_us_ - began_us_;
  if (waited_us < policy_.spin_us) return;
  if (waited_us < uint64_t{policy_.spin_us} + policy_.yield_us) {
    sched_yield();
    return;
  }
  Sleep(seen);
}

void Waiter::Sleep(uint32_t seen) {
  timespec bound{0, static_cast<long>(sleep_us_) * 1000};
  if (futex_ && waiting_ != nullptr) {
    // partner: the test in Wake(). Its load may pass the publishing store before it, so a peer that publishes
    // at the moment when we raise the flag may see it down while we do not see its word: we then miss the
    // wake-up. That can happen to the first sleep only, which is short: by the next one the flag has been
    // visible for long, and so has any word that was published without seeing it. A barrier in Wake() instead
    // would cost each posted record 80 ns (measured; half the rate).
    StoreRelease(*waiting_, 1);
    syscall(SYS_futex, FutexWord(*word_), FUTEX_WAIT, seen, &bound, nullptr, 0);
  } else {
    nanosleep(&bound, nullptr);
  }
  uint64_t most = futex_ && waiting_ != nullptr ? policy_.max_futex_sleep_us : policy_.max_sleep_us;
  if (policy_.waited_share > 1) most = std::min(most, (now_us_ - began_us_) / policy_.waited_share);
  sleep_us_ = static_cast<uint32_t>(
      std::min<uint64_t>(uint64_t{sleep_us_} * 2, std::max<uint64_t>(most, policy_.first_sleep_us + 1)));
}

bool Waiter::TimeToCheckPeer() {
  if (now_us_ - checked_us_ < kPeerCheckUs) return false;
  checked_us_ = now_us_;
  return true;
}

void Wake(const HotWord& word, const HotWord& peer_waiting, bool futex) {
  if (futex && LoadAcquire(peer_waiting) != 0)
    syscall(SYS_futex, FutexWord(word), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace causeway
