// SPDX-License-Identifier: Apache-2.0
// How late the event loop was: of the last one to two minutes the largest and the 99th percentile.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>

namespace causeway::daemon {

class Lateness {
 public:
  using Duration = std::chrono::nanoseconds;
  using Time = std::chrono::steady_clock::time_point;

  struct Summary {
    uint64_t count = 0;
    Duration max{0};
    Duration p99{0};  // of each power of two's quarters the upper end: at most a quarter too much
  };

  void Note(Duration late, Time now);
  Summary Of(Time now) const;

 private:
  static constexpr uint32_t kBuckets = 160;  // quarters of powers of two, from 1 ns
  static constexpr std::chrono::minutes kWindow{1};
  struct Window {
    std::array<uint64_t, kBuckets> counts{};
    Duration max{0};
    Time begin{};
  };
  static uint32_t Bucket(Duration late);
  static Duration UpperEnd(uint32_t bucket);
  Window now_, before_;
};

}  // namespace causeway::daemon
