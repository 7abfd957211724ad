// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/process/look_times.h"

#include <algorithm>

namespace causeway::guest {
namespace {

constexpr uint64_t kUnknownUs = 3'000;  // so long one naps for what nothing is known of
constexpr uint64_t kMostUs = 50'000;
constexpr uint64_t kLateUs = 55;  // sleeps last so much longer than they should
constexpr uint32_t kStepUs = 8;

}  // namespace

const LookTimes::Entry* LookTimes::Find(uint32_t kind) const {
  const Entry& entry = entries_[PlaceOf(kind)];
  return entry.kind == kind ? &entry : nullptr;
}

// As closely as naps tell.
bool LookTimes::Entry::Agree() const {
  constexpr uint32_t kShare = 8, kNapUs = 75;
  const auto [less, more] = std::minmax(last_us, before_us);
  return alone || more - less <= more / kShare + kNapUs;
}

bool LookTimes::MaySleep(uint32_t kind) const {
  const Entry* entry = Find(kind);
  if (entry == nullptr) return true;
  return entry->Agree() ? entry->last_us <= kMostUs
                        : std::min(entry->last_us, entry->before_us) <= kUnknownUs;
}

uint64_t LookTimes::First(uint32_t kind) const {
  const Entry* entry = Find(kind);
  return entry != nullptr ? entry->first_us : 0;
}

uint64_t LookTimes::Patience(uint32_t kind) const {
  const Entry* entry = Find(kind);
  const uint64_t expected_us = entry != nullptr ? std::min(entry->last_us, entry->before_us) : 0;
  return expected_us + expected_us / 4 + kUnknownUs;
}

uint64_t LookTimes::Nap(uint64_t waited_us, uint64_t first_us) {
  constexpr uint64_t kLeastShare = 64, kMostShare = 8, kOverdueShare = 4;
  const uint64_t least_us = std::clamp<uint64_t>(waited_us / kLeastShare, 20, 200);
  const uint64_t overdue_us = waited_us > first_us ? waited_us - first_us : 0;
  return std::clamp(overdue_us / kOverdueShare, least_us, std::max(least_us, waited_us / kMostShare));
}

// Ever faster: what has become much shorter is not waited for longer than a few times.
void LookTimes::CameBefore(uint32_t kind) {
  Entry& entry = entries_[PlaceOf(kind)];
  if (entry.kind != kind) return;
  entry.first_us -= std::min(entry.first_us, entry.step_us);
  entry.step_us *= 2;
}

// Two that differ say that the next is no shorter than the shorter one, one alone says less.
void LookTimes::Note(uint32_t kind, uint64_t us, uint64_t margin_us) {
  Entry& entry = entries_[PlaceOf(kind)];
  const auto last_us = static_cast<uint32_t>(std::min<uint64_t>(us, UINT32_MAX));
  const bool alone = entry.kind != kind;
  entry = {kind, last_us, alone ? last_us : entry.last_us, 0, kStepUs, alone};
  const uint64_t expected_us = alone           ? last_us - last_us / 4
                               : entry.Agree() ? last_us
                                               : std::min(last_us, entry.before_us);
  if (expected_us > margin_us) entry.first_us = static_cast<uint32_t>(expected_us - margin_us);
}

// It came within the last nap.
void LookTimes::Came(uint32_t kind, uint64_t us) {
  constexpr uint64_t kEarlierUs = 25;
  Note(kind, us, kLateUs + kEarlierUs);
}

// How late that was is not known.
void LookTimes::Woken(uint32_t kind, uint64_t us) {
  constexpr uint64_t kMarginUs = 110, kShare = 32, kMostOfShareUs = 200;
  Note(kind, us, kLateUs + kMarginUs + std::min(us / kShare, kMostOfShareUs));
}

}  // namespace causeway::guest
