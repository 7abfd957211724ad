// SPDX-License-Identifier: Apache-2.0
// Memory that this process and its worker share at one address: pinned host memory, managed memory and bulk
// buffers. It comes in arenas; one arena is one registration with the driver, and no allocation spans two,
// because the driver refuses a copy across registrations.
//
// Small allocations are rounded to size classes and share arenas; the best fit of all free extents is taken,
// and freed neighbours become one again. Large ones have an arena each. An empty arena goes back to the
// region; of the shared ones, one stays for the next allocation. Arenas come and go without the lock, which
// every look at a pointer needs: what the driver does meanwhile may take as long as the device is busy.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "guest_lib/addresses/host_allocation.h"
#include "guest_lib/connection/connection.h"
#include "guest_lib/process/lock_order.h"
#include "ivshmem_ring/messages/session_messages.h"
#include "ivshmem_ring/transport/transport.h"

namespace causeway::guest {

inline constexpr uint64_t kLentWordsBytes = kBulkBuffers * sizeof(HotWord);  // words of staging buffers

class RegionMemory {
 public:
  explicit RegionMemory(Connection& connection) : connection_(connection) {}

  // The session's bulk buffers, registered before any work exists (registering waits for the whole device).
  CUresult AddBulkArena(Bulk* bulks);

  // `bytes` of shared memory, aligned to 512, zeroed only if the region's pages are new.
  // CUDA_ERROR_OUT_OF_MEMORY when the region is full.
  CUresult Allocate(uint64_t bytes, HostKind kind, uint32_t flags, void** address);
  // False if no allocation starts there.
  bool Free(void* address);
  // The allocation that holds the address; false if none does.
  bool Find(uint64_t address, HostAllocation* allocation);
  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of the allocation that holds the address; false if none does.
  bool SetSyncMemops(uint64_t address, bool value);
  // Frees what belongs to a context.
  void FreeOf(const Object* context);
  // True for every address that could be region memory: cheap, for classifying pointers.
  bool InWindow(uint64_t address) const {
    return address - connection_.window_address < connection_.region_bytes;
  }

 private:
  struct Arena {
    uint64_t bytes = 0;
    ArenaUse use = ArenaUse::kPinned;
    bool shared = false;                // by small allocations
    std::map<uint64_t, uint64_t> free;  // offset in region -> bytes
  };
  struct Allocation {
    HostAllocation host;
    uint64_t reserved_bytes;
    uint64_t arena;
  };
  using Emptied = std::vector<std::pair<uint64_t, Arena>>;  // arenas to return, by offset

  CUresult AddArena(uint64_t bytes, ArenaUse use, uint64_t* offset);
  // A new arena with room for `reserved` bytes; gives the lock up meanwhile.
  CUresult Grow(uint64_t reserved, ArenaUse use, std::unique_lock<Mutex<Lock::kRegionMemory>>& lock);
  void ReturnArenas(const Emptied& emptied);
  // These need the lock.
  uint64_t NextArenaBytes(uint64_t reserved, ArenaUse use) const;
  bool Carve(uint64_t bytes, ArenaUse use, uint64_t* offset, uint64_t* arena);
  void AddFree(Arena& arena, uint64_t offset, uint64_t bytes, uint64_t start);
  void DropFree(Arena& arena, std::map<uint64_t, uint64_t>::iterator extent, uint64_t start);
  void FreeLocked(std::map<uint64_t, Allocation>::iterator found, Emptied* emptied);

  struct Extent {
    ArenaUse use;
    uint64_t bytes, offset, arena;
    auto operator<=>(const Extent&) const = default;
  };

  Connection& connection_;
  Mutex<Lock::kRegionMemory> mutex_;
  std::map<uint64_t, Arena> arenas_;            // by offset
  std::map<uint64_t, Allocation> allocations_;  // by offset
  std::set<Extent> extents_;                    // all that is free in any arena: the best fit is the first
};

// CUDA_ERROR_OUT_OF_MEMORY, and a sentence on stderr with the setting to change. `what` for: "pinned memory".
CUresult RegionFull(const Connection& connection, uint64_t bytes, const char* what);

}  // namespace causeway::guest
