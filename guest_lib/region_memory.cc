// SPDX-License-Identifier: Apache-2.0
// Arenas and the allocator inside them.
#include "guest_lib/region_memory.h"

#include <algorithm>

#include "guest_lib/log.h"
#include "guest_lib/session.h"
#include "ivshmem_ring/layout.h"

namespace causeway::guest {
namespace {

constexpr uint64_t kAlign = 512;
constexpr uint64_t kArenaBytes = 32u << 20;     // for small allocations
constexpr uint64_t kOwnArenaBytes = 16u << 20;  // from here on an allocation gets an arena of its own

CUresult SendArena(Op op, uint64_t offset, uint64_t bytes) {
  PendingCall call(op);
  call.writer().Put(ArenaBody{offset, bytes});
  return call.writer().ok() ? call.Finish() : call.writer().error();
}

uint64_t RoundUp(uint64_t value, uint64_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace

CUresult RegionMemory::AddArena(uint64_t bytes, uint64_t* offset) {
  if (!connection_.AllocateSlices(bytes, offset)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = CUDA_ERROR_MAP_FAILED;
  if (connection_.MapSlices(*offset, bytes) != nullptr) result = SendArena(Op::kAddArena, *offset, bytes);
  if (result != CUDA_SUCCESS) {
    connection_.FreeSlices(*offset, bytes);
    return result;
  }
  return CUDA_SUCCESS;
}

CUresult RegionMemory::AddBulkArena(Bulk* bulks) {
  uint64_t offset = 0;
  const CUresult result = AddArena(kBulkBuffers * kBulkBytes, &offset);
  if (result != CUDA_SUCCESS) return result;
  for (uint32_t i = 0; i < kBulkBuffers; ++i) {
    const uint64_t at = offset + i * kBulkBytes;
    bulks[i] = {reinterpret_cast<std::byte*>(connection_.window_address + at), at};
  }
  return CUDA_SUCCESS;
}

bool RegionMemory::Carve(uint64_t bytes, uint64_t* offset, uint64_t* arena_offset) {
  for (auto& [start, arena] : arenas_) {
    for (auto free = arena.free.begin(); free != arena.free.end(); ++free) {
      if (free->second < bytes) continue;
      *offset = free->first;
      *arena_offset = start;
      const uint64_t left = free->second - bytes;
      arena.free.erase(free);
      if (left != 0) arena.free[*offset + bytes] = left;
      return true;
    }
  }
  return false;
}

CUresult RegionMemory::Full(uint64_t bytes) const {
  Complain("no room for " + std::to_string(bytes) + " bytes of pinned memory in the shared region of " +
           std::to_string(connection_.region_bytes >> 20) +
           " MiB: raise region_mib (or local_region_mib) in causewayd's configuration");
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult RegionMemory::Allocate(uint64_t bytes, void** address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > connection_.region_bytes) return Full(bytes);
  const uint64_t rounded = RoundUp(bytes, kAlign);
  const std::lock_guard lock(mutex_);
  uint64_t offset = 0, arena = 0;
  if (rounded >= kOwnArenaBytes || !Carve(rounded, &offset, &arena)) {
    uint64_t arena_bytes = rounded >= kOwnArenaBytes ? RoundUp(rounded, kGranuleBytes) : kArenaBytes;
    CUresult result = AddArena(arena_bytes, &arena);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && arena_bytes > RoundUp(rounded, kGranuleBytes)) {
      arena_bytes = RoundUp(rounded, kGranuleBytes);  // a small region: take just what is needed
      result = AddArena(arena_bytes, &arena);
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return Full(bytes);
    if (result != CUDA_SUCCESS) return result;
    offset = arena;
    arenas_[arena].bytes = arena_bytes;
    if (arena_bytes != rounded) arenas_[arena].free[arena + rounded] = arena_bytes - rounded;
  }
  allocations_[offset] = {rounded, 0, arena};
  *address = reinterpret_cast<void*>(connection_.window_address + offset);
  return CUDA_SUCCESS;
}

bool RegionMemory::Free(void* address) {
  const std::lock_guard lock(mutex_);
  const uint64_t offset = reinterpret_cast<uint64_t>(address) - connection_.window_address;
  const auto found = allocations_.find(offset);
  if (found == allocations_.end()) return false;
  Arena& arena = arenas_[found->second.arena];
  const uint64_t arena_offset = found->second.arena;
  auto [at, inserted] = arena.free.emplace(offset, found->second.bytes);
  allocations_.erase(found);
  const auto next = std::next(at);
  if (next != arena.free.end() && at->first + at->second == next->first) {
    at->second += next->second;
    arena.free.erase(next);
  }
  if (at != arena.free.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second == at->first) {
      before->second += at->second;
      arena.free.erase(at);
    }
  }
  // An arena made for one allocation goes back to the region; the shared ones stay for the next.
  if (arena.bytes != kArenaBytes && arena.free.begin()->second == arena.bytes) {
    if (SendArena(Op::kDropArena, arena_offset, arena.bytes) == CUDA_SUCCESS) {
      connection_.FreeSlices(arena_offset, arena.bytes);
    }
    arenas_.erase(arena_offset);
  }
  return true;
}

bool RegionMemory::Find(uint64_t address, uint64_t* start, uint64_t* bytes, uint32_t* flags) {
  if (!InWindow(address)) return false;
  const std::lock_guard lock(mutex_);
  const uint64_t offset = address - connection_.window_address;
  auto found = allocations_.upper_bound(offset);
  if (found == allocations_.begin()) return false;
  --found;
  if (offset - found->first >= found->second.bytes) return false;
  *start = connection_.window_address + found->first;
  *bytes = found->second.bytes;
  if (flags != nullptr) *flags = found->second.flags;
  return true;
}

void RegionMemory::SetFlags(void* address, uint32_t flags) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(reinterpret_cast<uint64_t>(address) - connection_.window_address);
  if (found != allocations_.end()) found->second.flags = flags;
}

}  // namespace causeway::guest
