// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/transport/waiter.h"

#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "ivshmem_ring/system/futex.h"
#include "ivshmem_ring/transport/crowding.h"

namespace causeway {
namespace {

constexpr uint32_t kSpinsPerClockRead = 32;
constexpr uint64_t kPeerCheckUs = 10'000;
constexpr uint32_t kFirstLongSleepUs = 10'000;

// Within so long a peer that is woken has answered a short question, also if it needs this thread's processor.
constexpr uint32_t kAnswerUs = 50;

constexpr uint32_t kOne = 1, kFew = 2, kMany = 3;
constinit std::atomic<bool> peer_is_elsewhere{false};
uint32_t SpinUs(uint32_t processors, uint32_t of_many) {
  constexpr uint32_t kShortUs = 2;
  return processors > kFew ? of_many : processors == kFew ? std::min(kShortUs, of_many) : 0;
}

}  // namespace

uint64_t NowUs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

uint32_t UsableProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<uint32_t>(CPU_COUNT(&set));
  return static_cast<uint32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));  // more than the set holds
}

uint32_t KnownProcessors() {
  static const uint32_t processors = UsableProcessors();
  return processors;
}

void PeerIsElsewhere() {
  peer_is_elsewhere.store(true, std::memory_order_relaxed);
}

bool PeerRunsBeside() {
  return KnownProcessors() > kOne || peer_is_elsewhere.load(std::memory_order_relaxed);
}

uint32_t FreeProcessors() {
  const Crowding& crowding = Crowding::OfProcess();
  const Crowding::Kind crowd = crowding.seen() ? crowding.At(NowUs()) : Crowding::Kind::kNone;
  if (crowd != Crowding::Kind::kNone) return crowd == Crowding::Kind::kTurns ? kOne : kCrowded;
  return peer_is_elsewhere.load(std::memory_order_relaxed) ? std::max(KnownProcessors(), kMany)
                                                           : KnownProcessors();
}

// Where the peer wakes us, sleeping costs less than a timer's imprecision.
WaitPolicy ReplyPolicy(bool futex, uint32_t processors) {
  if (processors == kCrowded)
    return {.spin_us = PeerRunsBeside() ? kAnswerUs : 0, .max_sleep_us = 500, .ask_us = 0};
  WaitPolicy policy{.spin_us = SpinUs(processors, 100), .yield_us = 100, .first_sleep_us = 20};
  if (processors > kFew && !futex) policy.yield_us = 400;
  policy.max_sleep_us = processors > kFew ? 1000 : 500;
  return policy;
}

WaitPolicy BlockingPolicy(uint32_t processors) {
  WaitPolicy policy{.spin_us = SpinUs(processors, 2), .first_sleep_us = 20};
  policy.waited_share = 8;
  return policy;
}

// What comes after a long time may come later by a small part of it.
WaitPolicy PatientPolicy(bool futex, uint32_t processors) {
  WaitPolicy policy = ReplyPolicy(futex, processors);
  policy.max_sleep_us = 10'000;
  policy.max_futex_sleep_us = 1'000'000;
  policy.waited_share = 100;
  return policy;
}

// A session may be idle for days: what wakes its threads is its guest, or who watches for it, and the bound
// of their sleep is only for a guest that forgets to.
WaitPolicy IdlePolicy(uint32_t processors) {
  WaitPolicy policy{.spin_us = SpinUs(processors, 300), .first_sleep_us = 20};
  if (processors == kOne || processors == kFew) policy.yield_us = 50;
  policy.max_futex_sleep_us = 60'000'000;
  return policy;
}

// A function that is due after a long kernel may start later by a small part of the kernel's time.
WaitPolicy DevicePolicy(uint32_t processors) {
  WaitPolicy policy{.spin_us = SpinUs(processors, 50), .yield_us = 50, .first_sleep_us = 10};
  if (processors == kCrowded) policy.yield_us = 0;
  policy.waited_share = 32;
  return policy;
}

// That is microseconds, or a call that blocks, or a guest that lies: the last two deserve no processor.
WaitPolicy OrderPolicy(uint32_t processors) {
  constexpr uint32_t kAlmostThereUs = 10;
  if (processors == kCrowded) return {.spin_us = kAlmostThereUs, .max_sleep_us = 50};
  return {.spin_us = SpinUs(processors, 50), .yield_us = 200, .max_sleep_us = 50};
}

void SpinBudget::Note(uint64_t waited_us) {
  constexpr uint32_t kLeastUs = 10;
  if (waited_us <= us_) return;
  if (waited_us > most_us_) before_us_ = std::exchange(last_us_, waited_us);
  us_ = waited_us <= most_us_ ? std::min(us_ * 2, most_us_) : std::max(us_ / 2, std::min(kLeastUs, most_us_));
}

uint64_t SpinBudget::expected_us() const {
  constexpr uint64_t kMostUs = 20'000, kShare = 4;
  const auto [less, more] = std::minmax(last_us_, before_us_);
  const bool regular = more <= kMostUs && more - less <= more / kShare;
  return regular && most_us_ >= kMeetUs ? less : 0;  // who must not spin cannot meet it
}

uint32_t GatherPace::Begin(uint64_t taken) {
  if (std::exchange(gathered_, false)) {
    if (taken - taken_ >= kWorthwhile) {
      // Who waits would have seen the GPU begin earlier, so that the next one is short.
      us_ = hurried_ ? kLeastUs : std::min(us_ * 2, kMostUs);
      next_left_out_ = 1;
    } else {
      LeaveOut();
    }
  }
  if (left_out_ != 0) {
    --left_out_;
    return 0;
  }
  taken_ = taken;
  return us_;
}

void GatherPace::Note(End end, bool some) {
  gathered_ = end == End::kHurried || end == End::kFull || (end == End::kTime && some);
  hurried_ = end == End::kHurried;
  if (end == End::kTime && !some) LeaveOut();
}

void GatherPace::LeaveOut() {
  us_ = kLeastUs;
  left_out_ = next_left_out_;
  next_left_out_ = std::min(next_left_out_ * 2, kMostLeftOut);
}

uint64_t WaitHistory::Expected(uint32_t kind) const {
  const Entry& entry = entries_[PlaceOf(kind)];
  return entry.kind == kind ? std::min(entry.last_us, entry.before_us) : 0;
}

void WaitHistory::Note(uint32_t kind, uint64_t us) {
  Entry& entry = entries_[PlaceOf(kind)];
  const uint32_t before_us = entry.kind == kind ? entry.last_us : 0;
  entry = {kind, static_cast<uint32_t>(std::min<uint64_t>(us, UINT32_MAX)), before_us};
}

// Timers are late, and so is who sleeps deeply; waits of one kind differ by a small part. The rest is spun.
Waiter::Waiter(const WaitPolicy& policy, const HotWord* word, HotWord* waiting, bool wakes,
               uint64_t expected_us, const Bell* bell)
    : policy_(policy),
      word_(word),
      waiting_(waiting),
      wakes_(wakes),
      bell_(bell),
      sleep_us_(policy.first_sleep_us) {
  constexpr uint64_t kLateUs = 120, kWorthwhileUs = 60, kShare = 32;
  // A word that nobody wakes us for may change long before the time that was expected.
  if (!wakes || waiting == nullptr || expected_us < kLateUs + expected_us / kShare + kWorthwhileUs) return;
  nap_us_ = expected_us - kLateUs - expected_us / kShare;
  // Who must not spin yields.
  (policy.spin_us != 0 ? policy_.spin_us : policy_.yield_us) +=
      static_cast<uint32_t>(std::min<uint64_t>(expected_us / kShare, 1000));
}

Waiter::~Waiter() {
  if (flag_up_) StoreRelease(*waiting_, 0);
}

void Waiter::FlagIsUp(uint64_t since_us) {
  began_us_ = checked_us_ = now_us_ = since_us;
  Settle();
  now_us_ = NowUs();
}

void Waiter::Step(uint32_t seen) {
  _mm_pause();
  if (++spins_ % kSpinsPerClockRead != 0 && now_us_ - looks_from_us_ < policy_.spin_us) return;
  const uint64_t before_us = std::exchange(now_us_, NowUs());
  if (began_us_ == 0) {
    began_us_ = looks_from_us_ = checked_us_ = asked_us_ = now_us_;
  } else if (now_us_ - before_us >= Crowding::kSliceUs && peer_is_elsewhere.load(std::memory_order_relaxed)) {
    // This thread spun, and the clock says that it stood still: the host of this VM has given the processor to others.
    Crowding::OfProcess().Yielded(now_us_, now_us_ - before_us);
  }
  if (nap_us_ != 0 && now_us_ - began_us_ >= policy_.nap_after_us) return Nap(seen);
  const uint64_t looked_us = now_us_ - looks_from_us_;
  const bool asks = policy_.ask_us != 0 && now_us_ - asked_us_ >= policy_.ask_us;
  if (looked_us < policy_.spin_us) return asks ? Yield() : void();
  if (looked_us < uint64_t{policy_.spin_us} + policy_.yield_us) return Yield();
  if (const uint64_t waited_us = now_us_ - began_us_; waited_us < policy_.timed_us)
    return SleepByTimer(std::max<uint64_t>(WaitPolicy::kTimedSleepUs, waited_us / 2));
  if (!flag_up_ && wakes_ && waiting_ != nullptr && PeerRunsBeside()) return Settle();
  Sleep(seen);
}

namespace {

// Whether the kernel has let another thread run on this thread's processor since the last call. A yield also takes long when an
// interrupt comes or the hypervisor takes the processor, and that says nothing of other threads.
bool WasSwitchedOut() {
  thread_local long before = -1;
  rusage use{};
  if (getrusage(RUSAGE_THREAD, &use) != 0) return true;  // then the yield's length alone decides
  return std::exchange(before, use.ru_nivcsw) != use.ru_nivcsw;
}

}  // namespace

// Measured at once: what is waited for may have come meanwhile, and then nobody looks at the clock again.
void Waiter::Yield() {
  const uint64_t before_us = now_us_;
  sched_yield();
  asked_us_ = now_us_ = NowUs();
  if (now_us_ - before_us <= Crowding::kAloneUs) return;
  Crowding& crowding = Crowding::OfProcess();
  if (now_us_ - before_us < Crowding::kSliceUs && !WasSwitchedOut()) return;
  if (!PeerRunsBeside()) {
    crowding.YieldedOnOne(now_us_, now_us_ - before_us);
  } else {
    crowding.Yielded(now_us_, now_us_ - before_us);
  }
}

// A few more looks cost less processor time than a short sleep.
void Waiter::Settle() {
  StoreRelease(*waiting_, 1);
  flag_up_ = true;
  looks_from_us_ = asked_us_ = now_us_;
  policy_.spin_us = kSettleUs;
  policy_.yield_us = 0;
  sleep_us_ = std::min(std::max(sleep_us_, kFirstLongSleepUs), policy_.max_futex_sleep_us);
}

// The flag goes up some looks before the sleep, so that no wake-up is missed (SleepFor).
void Waiter::Nap(uint32_t seen) {
  const uint64_t end_us = began_us_ + nap_us_;
  if (now_us_ >= end_us) {
    StoreRelease(*waiting_, 0);
    flag_up_ = false;
    nap_us_ = 0;
    looks_from_us_ = asked_us_ = now_us_;
  } else if (flag_up_) {
    SleepFor(seen, std::min<uint64_t>(end_us - now_us_, policy_.max_futex_sleep_us));
  } else {
    StoreRelease(*waiting_, 1);
    flag_up_ = true;
    constexpr int kPauses = 100;  // some kSettleUs, also where this thread does not spin otherwise
    for (int i = 0; i < kPauses; ++i) _mm_pause();
  }
}

void Waiter::SleepFor(uint32_t seen, uint64_t us) {
  if (wakes_ && waiting_ != nullptr) {
    // partner: the test in Wake(). Its load may pass the publishing store before it, so a peer that publishes
    // at the moment when we raise the flag may see it down while we do not see its word: we then miss the
    // wake-up. So one looks on for some time after the flag went up (Settle, Nap), or the first sleep is
    // short: by then the flag has been visible for long, and so has any word that was published without
    // seeing it. A barrier in Wake() instead would cost each posted record 80 ns (measured; half the rate).
    StoreRelease(*waiting_, 1);
    flag_up_ = true;
    if (bell_ != nullptr) {
      bell_->Sleep(*word_, seen, us);
    } else {
      FutexWait(&word_->value, static_cast<uint32_t>(seen), static_cast<int64_t>(us) * 1000,
                FutexOf::kAllProcesses);
    }
    now_us_ = NowUs();
  } else {
    SleepByTimer(us);
  }
}

void Waiter::SleepByTimer(uint64_t us) {
  const timespec bound{static_cast<time_t>(us / 1'000'000), static_cast<long>(us % 1'000'000) * 1000};
  nanosleep(&bound, nullptr);
  now_us_ = NowUs();
}

void Waiter::Sleep(uint32_t seen) {
  SleepFor(seen, sleep_us_);
  constexpr uint64_t kGrowth = 64;
  uint64_t next_us = uint64_t{sleep_us_} * 2, most = policy_.max_sleep_us;
  if (wakes_ && waiting_ != nullptr) {
    next_us = std::max<uint64_t>(kFirstLongSleepUs, sleep_us_ * kGrowth);
    most = policy_.max_futex_sleep_us;
  } else if (policy_.waited_share > 1) {
    most = std::min(most, (now_us_ - began_us_) / policy_.waited_share);
  }
  sleep_us_ = static_cast<uint32_t>(
      std::min<uint64_t>(next_us, std::max<uint64_t>(most, policy_.first_sleep_us + 1)));
}

bool Waiter::TimeToCheckPeer() {
  if (now_us_ - checked_us_ < kPeerCheckUs) return false;
  checked_us_ = now_us_;
  return true;
}

void WakeSleepers(const HotWord& word) {
  FutexWakeAll(&word.value, FutexOf::kAllProcesses);
}

void WakePeer(const HotWord& word, const Bell* bell) {
  if (bell != nullptr) return bell->Ring();
  WakeSleepers(word);
}

// Each try takes the line from the holder, who then takes longer: with 16 threads of an H100 host that tried
// at every pause, half of all processor time went there, and posting was slower than launching. So tries
// become rare. Nor is the mutex slept for, which would cost each holder a system call to wake the next one.
void AwaitLock(std::unique_lock<std::mutex>& lock) {
  constexpr int kMostPauses = 256, kNaps = 20;
  constexpr timespec kNap{0, 50'000};
  for (int nap = 0; nap < kNaps && KnownProcessors() > 1; ++nap) {
    for (int pauses = 2; pauses <= kMostPauses; pauses *= 2) {
      for (int i = 0; i < pauses; ++i) _mm_pause();
      if (lock.try_lock()) return;
    }
    nanosleep(&kNap, nullptr);
  }
  lock.lock();
}

}  // namespace causeway
