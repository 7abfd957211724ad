// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/look_times.h"

#include <algorithm>

namespace causeway::guest {
namespace {

constexpr uint64_t kUnknownUs = 150;  // so long one naps for what nothing is known of
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

bool LookTimes::AreRegular(uint32_t kind) const {
  const Entry* entry = Find(kind);
  if (entry == nullptr) return true;
  return entry->Agree() ? entry->last_us <= kMostUs
                        : std::min(entry->last_us, entry->before_us) <= kUnknownUs;
}

uint64_t LookTimes::First(uint32_t kind) const {
  const Entry* entry = Find(kind);
  return entry != nullptr && entry->Agree() ? entry->first_us : 0;
}

uint64_t LookTimes::Patience(uint32_t kind) const {
  const Entry* entry = Find(kind);
  const uint64_t expected_us = entry != nullptr ? std::min(entry->last_us, entry->before_us) : 0;
  return expected_us + expected_us / 4 + kUnknownUs;
}

uint64_t LookTimes::Nap(uint64_t waited_us) {
  constexpr uint64_t kShare = 64;
  return std::clamp<uint64_t>(waited_us / kShare, 20, 200);
}

// Ever faster: what has become much shorter is not waited for longer than a few times.
void LookTimes::CameBefore(uint32_t kind) {
  Entry& entry = entries_[PlaceOf(kind)];
  if (entry.kind != kind) return;
  entry.first_us -= std::min(entry.first_us, entry.step_us);
  entry.step_us *= 2;
}

LookTimes::Entry& LookTimes::Note(uint32_t kind, uint64_t us) {
  Entry& entry = entries_[PlaceOf(kind)];
  const auto last_us = static_cast<uint32_t>(std::min<uint64_t>(us, UINT32_MAX));
  const bool alone = entry.kind != kind;
  entry = {kind, last_us, alone ? last_us : entry.last_us, 0, kStepUs, alone};
  return entry;
}

// It came within the last nap.
void LookTimes::Came(uint32_t kind, uint64_t us) {
  constexpr uint64_t kEarlierUs = 25;
  Entry& entry = Note(kind, us);
  if (us > kLateUs + kEarlierUs) entry.first_us = entry.last_us - kLateUs - kEarlierUs;
}

// How late that was is not known.
void LookTimes::Woken(uint32_t kind, uint64_t us) {
  constexpr uint64_t kMarginUs = 110, kShare = 32, kMostOfShareUs = 200;
  Entry& entry = Note(kind, us);
  const uint64_t margin_us = kLateUs + kMarginUs + std::min(us / kShare, kMostOfShareUs);
  if (us > margin_us) entry.first_us = static_cast<uint32_t>(std::min<uint64_t>(us - margin_us, UINT32_MAX));
}

}  // namespace causeway::guest
