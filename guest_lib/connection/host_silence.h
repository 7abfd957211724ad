// SPDX-License-Identifier: Apache-2.0
// What a process makes of a daemon that does not answer the opening of its session. A daemon that lives may take long, because a worker
// starts the driver first. One that gives no beat is stopped, or is being replaced by another one, which takes the session then.
#pragma once
#include <cstdint>

#include "guest_lib/connection/beat_watch.h"

namespace causeway::guest {

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
