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
  // Waiting threads call it side by side: one looks, and the others, who take it that all is well, are not kept. Had each of them its own
  // time, one that was interrupted between its clock and the others' notes would find these to lie in its future.
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
    // Who is asked only while somebody waits did not have to beat before.
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

}  // namespace causeway::guest
