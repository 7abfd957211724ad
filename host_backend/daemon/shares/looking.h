// SPDX-License-Identifier: Apache-2.0
// What the arbiters of turns and of the link have in common: how they judge the time between two looks, and caps. In nanoseconds.
#pragma once
#include <cstdint>

namespace causeway::daemon {

// When the caller is to look again, the later the smaller: never by itself, or after the nap of that name (turns.cc).
enum class NextLook { kNone, kSlow, kWatch, kFast, kAtOnce };

// At least twice as long as any nap of the caller's (turns.cc): of a host that was suspended, or a debugger, nothing is charged.
inline constexpr uint64_t kMostBetweenLooks = 20'000'000;
// How much a VM can save up of its cap: little, so that a second never sees more than the cap by 2 %.
inline constexpr double kCapBurstNs = 20e6;
// How long what a VM owes outlives its last session, at most.
inline constexpr uint64_t kOwedNs = 100'000'000'000;
// A VM that has had nothing to do for so long is woken for, and not looked at.
inline constexpr uint64_t kForgetNs = 1'000'000'000;

}  // namespace causeway::daemon
