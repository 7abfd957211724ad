// SPDX-License-Identifier: Apache-2.0
// Memory that this process and its worker share at one address: pinned host memory, managed memory and bulk
// buffers. It comes in arenas; one arena is one registration with the driver, and no allocation spans two,
// because the driver refuses a copy across registrations.
#pragma once
#include "ivshmem_ring/driver_api.h"

#include <cstdint>
#include <map>
#include <mutex>

#include "guest_lib/connect.h"
#include "guest_lib/memory.h"
#include "ivshmem_ring/session_messages.h"
#include "ivshmem_ring/transport.h"

namespace causeway::guest {

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
    std::map<uint64_t, uint64_t> free;  // offset in region -> bytes
  };
  struct Allocation {
    HostAllocation host;
    uint64_t reserved_bytes;
    uint64_t arena;
  };
  CUresult AddArena(uint64_t bytes, ArenaUse use, uint64_t* offset);
  bool Carve(uint64_t bytes, ArenaUse use, uint64_t* offset, uint64_t* arena);
  CUresult Reserve(uint64_t reserved, ArenaUse use, uint64_t* offset, uint64_t* arena);
  void FreeLocked(std::map<uint64_t, Allocation>::iterator found);

  Connection& connection_;
  std::mutex mutex_;
  std::map<uint64_t, Arena> arenas_;            // by offset
  std::map<uint64_t, Allocation> allocations_;  // by offset
};

// Says that the region is full, with the setting to change; what for: "pinned memory".
CUresult RegionFull(const Connection& connection, uint64_t bytes, const char* what);

}  // namespace causeway::guest
