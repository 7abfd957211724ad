// SPDX-License-Identifier: Apache-2.0
// When a thread that sleeps looks for what nobody wakes it for: each look is a wake-up, which costs 7 us of
// processor time on a GPU host, so there should be one, soon after the end. Nobody knows the end from before,
// but waits of one kind resemble each other: the first look comes a little earlier each time that it finds
// the end behind it, and where the end was found by naps when it does not.
#pragma once
#include <cstdint>

namespace causeway::guest {

class LookTimes {
 public:
  // Whether waits of that kind are worth it: not if the last two lasted longer than one naps without knowing,
  // and differed, nor if they were so long that what the host's wait costs is little.
  bool MaySleep(uint32_t kind) const;
  // To sleep for before the first look. 0: nothing is known, nap.
  uint64_t First(uint32_t kind) const;
  // After that, until it is given up. The host's wait costs as much as thirty naps.
  uint64_t Patience(uint32_t kind) const;
  // When so much of the wait has passed: longer the longer the end is overdue.
  static uint64_t Nap(uint64_t waited_us, uint64_t first_us);

  // The end was there at the first look.
  void CameBefore(uint32_t kind);
  // The end was found by naps.
  void Came(uint32_t kind, uint64_t us);
  // Somebody woke us. 0: nothing can be said of the next.
  void Woken(uint32_t kind, uint64_t us);

 private:
  static constexpr uint32_t kKinds = 16;
  struct Entry {
    uint32_t kind = 0;
    uint32_t last_us = 0, before_us = 0;  // as far as they were measured
    uint32_t first_us = 0;
    uint32_t step_us = 0;
    bool alone = false;  // there is no wait before the last

    bool Agree() const;
  };
  const Entry* Find(uint32_t kind) const;
  void Note(uint32_t kind, uint64_t us, uint64_t margin_us);
  static uint32_t PlaceOf(uint32_t kind) { return (kind * 0x9e3779b1u) >> 28; }

  Entry entries_[kKinds];
};

}  // namespace causeway::guest
