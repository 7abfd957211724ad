// SPDX-License-Identifier: Apache-2.0
// Pages of a region whose causewayd ended while the domain still had them mapped. Linux gives such pages back only by so
// many a second once the domain has let go of them. Until then they take room in Xen's table of grants, but neither the
// allocator's count nor anything else that a program can read has them: hence an estimate, from what that region had.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>

namespace causeway::daemon {

class DepartingPages {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // The domain has let go of `pages` pages now, of which Linux gives back at most `per_second`; 0: all in its next second.
  void Add(uint64_t pages, uint64_t per_second, Time now) {
    const uint64_t together = Left(now) + pages;
    const uint64_t seconds = per_second == 0 ? 0 : (together + per_second - 1) / per_second;
    pages_ = together;
    per_second_ = per_second;
    end_ = now + kSlack + std::chrono::seconds(seconds);
  }
  // At most so many are not given back yet.
  uint64_t Left(Time now) const {
    if (now >= end_) return 0;
    const auto seconds = uint64_t(std::chrono::ceil<std::chrono::seconds>(end_ - now).count());
    return per_second_ == 0 ? pages_ : std::min(pages_, seconds * per_second_);
  }

 private:
  static constexpr std::chrono::seconds kSlack{2};  // Linux begins after a second, and its timer may be late
  uint64_t pages_ = 0, per_second_ = 0;
  Time end_;
};

}  // namespace causeway::daemon
