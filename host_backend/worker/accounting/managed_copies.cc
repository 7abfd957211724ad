// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/accounting/managed_copies.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace causeway::host {
namespace {

std::mutex mutex;
std::condition_variable ended;  // a copy or a free
std::vector<ManagedPiece> copied, freed;

bool Overlap(const ManagedPiece& a, const ManagedPiece& b) {
  return a.address < b.address ? b.address - a.address < a.bytes : a.address - b.address < b.bytes;
}

bool AnyOverlaps(const std::vector<ManagedPiece>& ranges, const ManagedPiece& range) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const ManagedPiece& each) { return Overlap(each, range); });
}

void EraseOne(std::vector<ManagedPiece>& ranges, const ManagedPiece& range) {
  const auto found = std::find_if(ranges.begin(), ranges.end(), [&](const ManagedPiece& each) {
    return each.address == range.address && each.bytes == range.bytes;
  });
  if (found != ranges.end()) ranges.erase(found);
}

}  // namespace

ManagedCopy::ManagedCopy(std::span<const ManagedPiece> pieces) : pieces_(pieces) {
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] {
    return std::none_of(pieces.begin(), pieces.end(),
                        [](const ManagedPiece& piece) { return AnyOverlaps(freed, piece); });
  });
  copied.insert(copied.end(), pieces.begin(), pieces.end());
}

ManagedCopy::~ManagedCopy() {
  const std::lock_guard lock(mutex);
  for (const ManagedPiece& piece : pieces_) EraseOne(copied, piece);
  ended.notify_all();
}

ManagedFree::ManagedFree(uint64_t address, uint64_t bytes) : range_{address, bytes} {
  std::unique_lock lock(mutex);
  freed.push_back(range_);
  ended.wait(lock, [&] { return !AnyOverlaps(copied, range_); });
}

ManagedFree::~ManagedFree() {
  const std::lock_guard lock(mutex);
  EraseOne(freed, range_);
  ended.notify_all();
}

}  // namespace causeway::host
