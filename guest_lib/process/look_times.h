// SPDX-License-Identifier: Apache-2.0
// When to look, in a no-spin wait, for a fence value: the GPU writes it and wakes no thread. Each look is a
// wake-up, which costs processor time, so there should be one look, soon after the end of the wait. The end
// is not known beforehand, but waits of one kind resemble each other. So the first look comes a little
// earlier each time that it finds the value there; when it does not, timed sleeps find the end, and the next
// first look is moved to it.
//
// Times are in microseconds since the wait began. A kind is any number but 0. One thread uses an object.
#pragma once
#include <cstdint>

namespace causeway::guest {

class LookTimes {
 public:
  // Whether a wait of that kind should sleep for its fence value. It should not if the last two differed and
  // lasted longer than timed sleeps without knowledge are worth, nor if they were so long that asking the
  // host costs little in comparison.
  bool MaySleep(uint32_t kind) const;
  // How long to sleep before the first look. 0: nothing is known, so the wait begins with timed sleeps.
  uint64_t First(uint32_t kind) const;
  // How long the wait may take before the host is asked.
  uint64_t Patience(uint32_t kind) const;
  // How long the next timed sleep is when waited_us of the wait have passed. It grows with the time by which
  // the end is overdue.
  static uint64_t Nap(uint64_t waited_us, uint64_t first_us);

  // One of these is to be called when a wait of that kind has ended.
  void CameBefore(uint32_t kind);          // the value was there at the first look
  void Came(uint32_t kind, uint64_t us);   // timed sleeps found the value after `us`
  void Woken(uint32_t kind, uint64_t us);  // the host's answer woke the thread after `us`; 0: not comparable

 private:
  static constexpr uint32_t kKinds = 16;
  struct Entry {
    uint32_t kind = 0;
    uint32_t last_us = 0, before_us = 0;  // how long the last two waits took, as far as it was measured
    uint32_t first_us = 0;
    uint32_t step_us = 0;
    bool alone = false;  // there was one wait of that kind so far

    bool Agree() const;
  };
  const Entry* Find(uint32_t kind) const;
  void Note(uint32_t kind, uint64_t us, uint64_t margin_us);
  static uint32_t PlaceOf(uint32_t kind) { return (kind * 0x9e3779b1u) >> 28; }

  Entry entries_[kKinds];
};

}  // namespace causeway::guest
