// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/staging/staging_places.h"

#include <algorithm>
#include <atomic>
#include <bit>

namespace causeway::guest {
namespace {
std::atomic<uint32_t> copies_under_way{0};
}

CopyUnderWay::CopyUnderWay() {
  copies_under_way.fetch_add(1, std::memory_order_relaxed);
}

CopyUnderWay::~CopyUnderWay() {
  copies_under_way.fetch_sub(1, std::memory_order_relaxed);
}

uint32_t CopyUnderWay::Count() {
  return copies_under_way.load(std::memory_order_relaxed);
}

StagingPlaces::StagingPlaces(Session& session, uint32_t most_buffers, uint64_t place_bytes)
    : session_(session),
      most_buffers_(std::min(most_buffers, static_cast<uint32_t>(kMostPlaces * place_bytes / kBulkBytes))),
      place_bytes_(place_bytes),
      each_(static_cast<uint32_t>(kBulkBytes / place_bytes)) {}

// One less while somebody waits for a buffer.
uint32_t StagingPlaces::Share() const {
  const uint32_t share = kBulkBuffers / CopyUnderWay::Count();
  return std::clamp(share, 1u, most_buffers_) - (session_.IsBulkAwaited() ? 1 : 0);
}

void StagingPlaces::Add(uint32_t buffer) {
  const auto slot = static_cast<uint32_t>(std::countr_one(held_));
  buffers_[slot] = buffer;
  held_ |= 1u << slot;
  free_ |= PlacesOf(slot);
}

// Buffers beyond the share, of which no place is in use. The last one serves one turn first.
void StagingPlaces::GiveUpSurplus() {
  for (uint32_t slot = 0; held_ >> slot != 0; ++slot) {
    const auto buffers = static_cast<uint32_t>(std::popcount(held_));
    if (buffers <= Share() || (buffers == 1 && turn_ < each_)) return;
    const uint32_t places = PlacesOf(slot);
    if ((held_ >> slot & 1) == 0 || (free_ & places) != places) continue;
    free_ &= ~places;
    held_ &= ~(1u << slot);
    session_.ReleaseBulk(buffers_[slot]);
  }
}

bool StagingPlaces::Take(uint32_t* place) {
  GiveUpSurplus();
  const auto buffers = static_cast<uint32_t>(std::popcount(held_));
  uint32_t buffer = 0;
  if (buffers == 0) {
    Add(session_.AcquireBulk());
    turn_ = 0;
  } else if (buffers > Share() && (buffers > 1 || turn_ >= each_)) {
    return false;  // until pieces are done
  } else if (free_ == 0) {
    if (buffers >= Share() || !session_.TryAcquireBulk(&buffer)) return false;
    Add(buffer);
  }
  const uint32_t later = free_ & ~((1u << next_) - 1);
  *place = static_cast<uint32_t>(std::countr_zero(later != 0 ? later : free_));
  free_ &= ~(1u << *place);
  next_ = (*place + 1) % kMostPlaces;
  ++turn_;
  return true;
}

void StagingPlaces::Give(uint32_t place) {
  free_ |= 1u << place;
  GiveUpSurplus();
}

}  // namespace causeway::guest
