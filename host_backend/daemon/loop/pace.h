// SPDX-License-Identifier: Apache-2.0
// How often a peer may make the event loop work for it: so many times at once, and so many each millisecond
// from then on. What comes faster waits where it is, with the sender.
#pragma once
#include <algorithm>
#include <chrono>

namespace causeway::daemon {

class Pace {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Pace(double at_once, double per_ms) : at_once_(at_once), per_ms_(per_ms), left_(at_once) {}

  // False: not now.
  bool Take(Time now) {
    if (!Has(now)) return false;
    left_ -= 1;
    return true;
  }
  // Whether Take would be true.
  bool Has(Time now) {
    const std::chrono::duration<double, std::milli> passed = now - looked_;
    looked_ = now;
    left_ = std::min(at_once_, left_ + per_ms_ * std::max(passed.count(), 0.0));
    return left_ >= 1;
  }
  // What cannot be known before costs so much more, also where less is left: then nothing goes until that is made up for.
  void Charge(double much) { left_ -= much; }

 private:
  const double at_once_, per_ms_;
  double left_;
  Time looked_ = std::chrono::steady_clock::now();
};

// The pace of the workers of one scope together: control packets, questions about mappings, and reads of what they print.
struct WorkerPace : Pace {
  static constexpr double kAtOnce = 512, kPerMs = 4;
  WorkerPace() : Pace(kAtOnce, kPerMs) {}
  // How many may be given up before they are ready: each was a process of its own.
  Pace given_up{8, 0.002};
};

}  // namespace causeway::daemon
