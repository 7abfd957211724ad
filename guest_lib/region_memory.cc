// SPDX-License-Identifier: Apache-2.0
// Arenas and the allocator inside them.
#include "guest_lib/region_memory.h"

#include <algorithm>

#include "guest_lib/context.h"
#include "guest_lib/log.h"
#include "guest_lib/session.h"
#include "ivshmem_ring/layout.h"

namespace causeway::guest {
namespace {

constexpr uint64_t kAlign = 512;
constexpr uint64_t kArenaBytes = 32u << 20;     // for small allocations
constexpr uint64_t kOwnArenaBytes = 16u << 20;  // from here on an allocation gets an arena of its own

CUresult SendArena(Op op, uint64_t offset, uint64_t bytes, ArenaUse use) {
  PendingCall call(op);
  call.writer().Put(ArenaBody{offset, bytes, use, 0});
  return call.writer().ok() ? call.Finish() : call.writer().error();
}

uint64_t RoundUp(uint64_t value, uint64_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace

CUresult RegionMemory::AddArena(uint64_t bytes, ArenaUse use, uint64_t* offset) {
  bool zeroed = false;
  if (!connection_.AllocateSlices(bytes, offset, &zeroed)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = CUDA_ERROR_MAP_FAILED;
  if (connection_.MapSlices(*offset, bytes) != nullptr)
    result = SendArena(Op::kAddArena, *offset, bytes, use);
  if (result != CUDA_SUCCESS) {
    connection_.FreeSlices(*offset, bytes);
    return result;
  }
  return CUDA_SUCCESS;
}

CUresult RegionMemory::AddBulkArena(Bulk* bulks) {
  uint64_t offset = 0;
  const CUresult result = AddArena(kBulkBuffers * kBulkBytes, ArenaUse::kStaging, &offset);
  if (result != CUDA_SUCCESS) return result;
  for (uint32_t i = 0; i < kBulkBuffers; ++i) {
    const uint64_t at = offset + i * kBulkBytes;
    bulks[i] = {reinterpret_cast<std::byte*>(connection_.window_address + at), at};
  }
  return CUDA_SUCCESS;
}

bool RegionMemory::Carve(uint64_t bytes, ArenaUse use, uint64_t* offset, uint64_t* arena_offset) {
  for (auto& [start, arena] : arenas_) {
    if (arena.use != use) continue;
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

CUresult RegionFull(const Connection& connection, uint64_t bytes, const char* what) {
  Complain("no room for " + std::to_string(bytes) + " bytes of " + what + " in the shared region of " +
           std::to_string(connection.region_bytes >> 20) +
           " MiB: raise region_mib (or local_region_mib) in causewayd's configuration");
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult RegionMemory::Reserve(uint64_t reserved, ArenaUse use, uint64_t* offset, uint64_t* arena) {
  if (reserved < kOwnArenaBytes && Carve(reserved, use, offset, arena)) return CUDA_SUCCESS;
  uint64_t arena_bytes = reserved >= kOwnArenaBytes ? RoundUp(reserved, kGranuleBytes) : kArenaBytes;
  CUresult result = AddArena(arena_bytes, use, arena);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && arena_bytes > RoundUp(reserved, kGranuleBytes)) {
    arena_bytes = RoundUp(reserved, kGranuleBytes);  // a small region: take just what is needed
    result = AddArena(arena_bytes, use, arena);
  }
  if (result != CUDA_SUCCESS) return result;
  *offset = *arena;
  arenas_[*arena].bytes = arena_bytes;
  arenas_[*arena].use = use;
  if (arena_bytes != reserved) arenas_[*arena].free[*arena + reserved] = arena_bytes - reserved;
  return CUDA_SUCCESS;
}

CUresult RegionMemory::Allocate(uint64_t bytes, HostKind kind, uint32_t flags, void** address) {
  const char* what = kind == HostKind::kManaged ? "managed memory" : "pinned memory";
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > connection_.region_bytes) return RegionFull(connection_, bytes, what);
  const uint64_t reserved = RoundUp(bytes, kAlign);
  const std::lock_guard lock(mutex_);
  uint64_t offset = 0, arena = 0;
  const ArenaUse use = kind == HostKind::kManaged ? ArenaUse::kManaged : ArenaUse::kPinned;
  const CUresult result = Reserve(reserved, use, &offset, &arena);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return RegionFull(connection_, bytes, what);
  if (result != CUDA_SUCCESS) return result;
  const uint64_t at = connection_.window_address + offset;
  HostAllocation host{.address = at, .bytes = bytes, .kind = kind, .flags = flags};
  host.context = kind == HostKind::kInternal ? nullptr : CurrentContextObject();
  host.id = NextId();
  host.device_address = at;
  allocations_[offset] = {host, reserved, arena};
  *address = reinterpret_cast<void*>(at);
  return CUDA_SUCCESS;
}

bool RegionMemory::Free(void* address) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(reinterpret_cast<uint64_t>(address) - connection_.window_address);
  if (found == allocations_.end()) return false;
  FreeLocked(found);
  return true;
}

void RegionMemory::FreeOf(const Object* context) {
  const std::lock_guard lock(mutex_);
  for (auto at = allocations_.begin(); at != allocations_.end();) {
    const auto here = at++;
    if (here->second.host.context == context) FreeLocked(here);
  }
}

void RegionMemory::FreeLocked(std::map<uint64_t, Allocation>::iterator found) {
  const uint64_t offset = found->first, bytes = found->second.reserved_bytes;
  const uint64_t arena_offset = found->second.arena;
  Arena& arena = arenas_[arena_offset];
  auto [at, inserted] = arena.free.emplace(offset, bytes);
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
    if (SendArena(Op::kDropArena, arena_offset, arena.bytes, arena.use) == CUDA_SUCCESS) {
      connection_.FreeSlices(arena_offset, arena.bytes);
    }
    arenas_.erase(arena_offset);
  }
}

bool RegionMemory::Find(uint64_t address, HostAllocation* allocation) {
  if (!InWindow(address)) return false;
  const std::lock_guard lock(mutex_);
  auto found = allocations_.upper_bound(address - connection_.window_address);
  if (found == allocations_.begin()) return false;
  --found;
  if (address - found->second.host.address >= found->second.host.bytes) return false;
  *allocation = found->second.host;
  return true;
}

bool RegionMemory::SetSyncMemops(uint64_t address, bool value) {
  HostAllocation host;
  if (!Find(address, &host)) return false;
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(host.address - connection_.window_address);
  if (found != allocations_.end()) found->second.host.sync_memops = value;
  return found != allocations_.end();
}

}  // namespace causeway::guest
