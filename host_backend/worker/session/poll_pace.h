// SPDX-License-Identifier: Apache-2.0
// How often a worker polls whether work is done that may be done at once. A poll in vain costs processor time, and the next one is
// likely to be in vain, too, because a program's copies are of one kind: so ever more of them are left out, until one is not in vain.
#pragma once
#include <algorithm>
#include <cstdint>

namespace causeway::host {

// One thread.
class PollPace {
 public:
  enum class End { kDone, kVain, kCutShort };
  // False: this poll is left out. After true, Note tells how it ended.
  bool Begin() {
    if (left_ == 0) return true;
    --left_;
    return false;
  }
  // A poll that was cut short, because somebody waited for the thread, says nothing.
  void Note(End end) {
    if (end == End::kCutShort) return;
    left_out_ = end == End::kDone ? 0 : std::clamp(2 * left_out_, kLeast, kMost);
    left_ = left_out_;
  }

 private:
  // Even, so that of a program that does two things in turns both are polled.
  static constexpr uint32_t kLeast = 2, kMost = 32;
  uint32_t left_out_ = 0;  // between two polls; 0 after one that was not in vain
  uint32_t left_ = 0;      // of these
};

}  // namespace causeway::host
