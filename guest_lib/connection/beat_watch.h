// SPDX-License-Identifier: Apache-2.0
// Whether the daemon still lives, by its beat: a counter in the region that it raises every second, or, where nothing looks at an
// idle VM (docs/doorbells.md), when it is asked.
#pragma once
#include <cstdint>
#include <mutex>

namespace causeway::guest {

class BeatWatch {
 public:
  static constexpr uint64_t kTimeoutMs = 15'000, kAskEveryMs = 1000;

  // Whether no beat has come for kTimeoutMs in which there should have been one. `now_ms()` is a clock that never goes back,
  // `beat()` the counter, and `ask()` asks for a beat where there are none without asking, and is false where they come by themselves.
  // Several waiting threads may call this function at the same time. One of them looks at the counter; the others get false at once,
  // because they can go on waiting without its answer. The clock is read under the lock: a thread that read it before another one
  // noted a later time would subtract the later time from the earlier, and the difference would wrap to more than any limit.
  template <class Clock, class Beat, class Ask>
  bool IsMissing(Clock now_ms, Beat beat, Ask ask) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;
    const uint64_t now = now_ms();  // before the beat, which is then at least as new as this
    const uint64_t value = beat();
    if (value != beat_ || changed_ms_ == 0) {
      beat_ = value;
      changed_ms_ = now;
      return false;
    }
    // A daemon that beats only when it is asked is not asked while no thread waits. That silence is therefore not counted: the time
    // begins anew with the first question after it.
    constexpr uint64_t kNobodyWaitedMs = 3 * kAskEveryMs;
    if (now - changed_ms_ > kAskEveryMs && now - asked_ms_ > kAskEveryMs && ask()) {
      if (now - asked_ms_ > kNobodyWaitedMs) changed_ms_ = now;
      asked_ms_ = now;
    }
    return now - changed_ms_ > kTimeoutMs;
  }

 private:
  std::mutex mutex_;
  uint64_t beat_ = 0, changed_ms_ = 0, asked_ms_ = 0;
};

// What a process makes of a daemon that does not answer the opening of its session. A daemon that lives may take long, because a worker
// starts the driver first. One that gives no beat is stopped, or is being replaced by another one, which takes the session then.
class HostSilence {
 public:
  static constexpr uint64_t kSayAfterMs = 3000;
  enum class Verdict {
    kWait,
    kSay,  // once: the user is to hear what is waited for
    kEnd,  // there is no daemon
  };

  // To be called again and again by one thread, from the moment when the host was asked. The parameters are those of
  // BeatWatch::IsMissing; `stopped`: the last daemon has said that it stops.
  template <class Clock, class Beat, class Ask>
  Verdict Look(Clock now_ms, Beat beat, Ask ask, bool stopped) {
    const bool missing = beats_.IsMissing(now_ms, beat, ask);
    const uint64_t now = now_ms(), value = beat();
    if (!begun_ || value != beat_) {
      begun_ = true;
      beat_ = value;
      since_ms_ = now;
    }
    const bool long_enough = now - since_ms_ >= kSayAfterMs;
    if (missing || (stopped && long_enough)) return Verdict::kEnd;
    if (said_ || !long_enough) return Verdict::kWait;
    said_ = true;
    return Verdict::kSay;
  }

 private:
  BeatWatch beats_;
  bool begun_ = false, said_ = false;
  uint64_t beat_ = 0, since_ms_ = 0;
};

}  // namespace causeway::guest
