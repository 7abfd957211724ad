// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/addresses/region_memory.h"

#include <algorithm>
#include <bit>
#include <memory>

#include "guest_lib/addresses/address_windows.h"
#include "guest_lib/process/log.h"
#include "guest_lib/session/context.h"
#include "guest_lib/session/session.h"
#include "ivshmem_ring/messages/registration.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::guest {
namespace {

constexpr uint64_t kAlign = 512;
// Arenas for small allocations grow from the first to the last: one costs as much as its pages do, and few
// programs need more than a little.
constexpr uint64_t kFirstArenaBytes = 4u << 20, kLastArenaBytes = 32u << 20;
constexpr uint64_t kOwnArenaBytes = 16u << 20;  // from here on an allocation gets an arena of its own

CUresult SendArena(Op op, uint64_t offset, uint64_t bytes, ArenaUse use) {
  return AskHost(op, ArenaBody{offset, bytes, use, 0});
}

uint64_t RoundUp(uint64_t value, uint64_t step) {
  return (value + step - 1) / step * step;
}

// Eight classes for each power of two: what was freed fits what is asked for next; at most 1/8 is wasted.
uint64_t SizeClass(uint64_t bytes) {
  if (bytes <= kPageBytes) return RoundUp(bytes, kAlign);
  if (bytes >= kOwnArenaBytes) return RoundUp(bytes, kGranuleBytes);
  return RoundUp(bytes, std::max(kPageBytes, std::bit_ceil(bytes) / 16));
}

CUresult PrepareMemory(Connection& connection, Bulk* bulks, RegionMemory** memory) {
  static auto& made =
      *new std::unique_ptr<RegionMemory>;  // again after a cuInit that failed; never destroyed
  made = std::make_unique<RegionMemory>(connection);
  *memory = made.get();
  const CUresult result = AgreeOnAddresses(connection);
  return result == CUDA_SUCCESS && connection.transport->shares_memory() ? made->AddBulkArena(bulks) : result;
}

[[gnu::constructor]] void SetHook() {
  hooks.prepare_memory = PrepareMemory;
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
  // Words that the GPU writes are registered here too: later that might wait for work that needs the program.
  const CUresult result = AddArena(kBulkBuffers * kBulkBytes + kGranuleBytes, ArenaUse::kStaging, &offset);
  if (result != CUDA_SUCCESS) return result;
  const uint64_t words = connection_.window_address + offset + kBulkBuffers * kBulkBytes;
  hooks.use_buffer_words(reinterpret_cast<HotWord*>(words));
  hooks.use_stream_words(reinterpret_cast<HotWord*>(words + kLentWordsBytes));
  for (uint32_t i = 0; i < kBulkBuffers; ++i) {
    const uint64_t at = offset + i * kBulkBytes;
    bulks[i] = {reinterpret_cast<std::byte*>(connection_.window_address + at), at};
  }
  return CUDA_SUCCESS;
}

void RegionMemory::AddFree(Arena& arena, uint64_t offset, uint64_t bytes, uint64_t start) {
  arena.free.emplace(offset, bytes);
  extents_.insert({arena.use, bytes, offset, start});
}

void RegionMemory::DropFree(Arena& arena, std::map<uint64_t, uint64_t>::iterator extent, uint64_t start) {
  extents_.erase({arena.use, extent->second, extent->first, start});
  arena.free.erase(extent);
}

bool RegionMemory::Carve(uint64_t bytes, ArenaUse use, uint64_t* offset, uint64_t* arena) {
  const auto best = extents_.lower_bound({use, bytes, 0, 0});
  if (best == extents_.end() || best->use != use) return false;
  const Extent extent = *best;
  Arena& home = arenas_[extent.arena];
  DropFree(home, home.free.find(extent.offset), extent.arena);
  if (extent.bytes != bytes) AddFree(home, extent.offset + bytes, extent.bytes - bytes, extent.arena);
  *offset = extent.offset;
  *arena = extent.arena;
  return true;
}

CUresult RegionFull(const Connection& connection, uint64_t bytes, const char* what) {
  Complain("no room for " + std::to_string(bytes) + " bytes of " + what + " in the shared region of " +
           std::to_string(connection.region_bytes >> 20) +
           " MiB: raise region_mib (or local_region_mib) in causewayd's configuration");
  return CUDA_ERROR_OUT_OF_MEMORY;
}

uint64_t RegionMemory::NextArenaBytes(uint64_t reserved, ArenaUse use) const {
  if (reserved >= kOwnArenaBytes) return reserved;
  uint64_t bytes = std::max(kFirstArenaBytes, std::bit_ceil(2 * reserved));
  for (const auto& [offset, arena] : arenas_) {
    if (arena.use == use && arena.shared) bytes *= 2;
    if (bytes >= kLastArenaBytes) return kLastArenaBytes;
  }
  return bytes;
}

CUresult RegionMemory::Grow(uint64_t reserved, ArenaUse use,
                            std::unique_lock<Mutex<Lock::kRegionMemory>>& lock) {
  const uint64_t wanted = NextArenaBytes(reserved, use);
  uint64_t bytes = wanted, offset = 0;
  lock.unlock();
  CUresult result = AddArena(bytes, use, &offset);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && bytes > RoundUp(reserved, kGranuleBytes)) {
    bytes = RoundUp(reserved, kGranuleBytes);  // a small region: take just what is needed
    result = AddArena(bytes, use, &offset);
  }
  lock.lock();
  if (result != CUDA_SUCCESS) return result;
  Arena& arena = arenas_[offset];
  arena.bytes = bytes;
  arena.use = use;
  arena.shared = bytes == wanted && reserved < kOwnArenaBytes;
  AddFree(arena, offset, bytes, offset);
  return CUDA_SUCCESS;
}

CUresult RegionMemory::Allocate(uint64_t bytes, HostKind kind, uint32_t flags, void** address) {
  const char* what = kind == HostKind::kManaged ? "managed memory" : "pinned memory";
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > connection_.region_bytes) return RegionFull(connection_, bytes, what);
  const uint64_t reserved = SizeClass(bytes);
  const ArenaUse use = kind == HostKind::kManaged ? ArenaUse::kManaged : ArenaUse::kPinned;
  uint64_t offset = 0, arena = 0;
  std::unique_lock lock(mutex_);
  bool nothing_reclaimed = false;
  // Another thread may take what this one added, but then that one has its memory.
  while (!Carve(reserved, use, &offset, &arena)) {
    const CUresult result = Grow(reserved, use, lock);
    if (result == CUDA_SUCCESS) continue;
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
    lock.unlock();
    // Whoever allocates for this library itself may hold locks that asking for events needs.
    if (kind == HostKind::kInternal || nothing_reclaimed) return RegionFull(connection_, bytes, what);
    // Another thread may have given memory back since this one tried: it tries once more in any case.
    nothing_reclaimed = !hooks.reclaim_freed();
    lock.lock();
  }
  const uint64_t at = connection_.window_address + offset;
  HostAllocation host{.address = at, .bytes = bytes, .kind = kind, .flags = flags};
  const bool outlasts = kind == HostKind::kInternal || kind == HostKind::kPooled;
  host.context = outlasts ? nullptr : CurrentContextObject();
  host.id = NextId();
  host.device_address = at;
  allocations_[offset] = {host, reserved, arena};
  *address = reinterpret_cast<void*>(at);
  return CUDA_SUCCESS;
}

bool RegionMemory::Free(void* address) {
  Emptied emptied;
  {
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(reinterpret_cast<uint64_t>(address) - connection_.window_address);
    if (found == allocations_.end()) return false;
    FreeLocked(found, &emptied);
  }
  ReturnArenas(emptied);
  return true;
}

void RegionMemory::FreeOf(const Object* context) {
  Emptied emptied;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = allocations_.begin(); at != allocations_.end();) {
      const auto here = at++;
      if (here->second.host.context == context) FreeLocked(here, &emptied);
    }
  }
  ReturnArenas(emptied);
}

void RegionMemory::FreeLocked(std::map<uint64_t, Allocation>::iterator found, Emptied* emptied) {
  uint64_t offset = found->first, bytes = found->second.reserved_bytes;
  const uint64_t start = found->second.arena;
  allocations_.erase(found);
  Arena& arena = arenas_[start];
  const auto next = arena.free.lower_bound(offset);
  if (next != arena.free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      DropFree(arena, before, start);
    }
  }
  if (next != arena.free.end() && offset + bytes == next->first) {
    bytes += next->second;
    DropFree(arena, next, start);
  }
  AddFree(arena, offset, bytes, start);
  if (bytes != arena.bytes) return;
  // Nothing is left in it. A shared one stays, unless another as empty stays already.
  const bool spare = std::any_of(arenas_.begin(), arenas_.end(), [&](const auto& other) {
    return other.first != start && other.second.use == arena.use && other.second.shared &&
           !other.second.free.empty() && other.second.free.begin()->second == other.second.bytes;
  });
  if (arena.shared && !spare) return;
  DropFree(arena, arena.free.begin(), start);
  emptied->emplace_back(start, std::move(arena));
  arenas_.erase(start);
}

void RegionMemory::ReturnArenas(const Emptied& emptied) {
  for (const auto& [offset, arena] : emptied) {
    if (SendArena(Op::kDropArena, offset, arena.bytes, arena.use) == CUDA_SUCCESS)
      connection_.FreeSlices(offset, arena.bytes);
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
