// SPDX-License-Identifier: Apache-2.0
// Memory that this process and its worker share at one address: pinned host memory and bulk buffers. It comes
// in arenas; one arena is one registration with the driver, and no allocation spans two, because the driver
// refuses a copy across registrations.
#pragma once
#include "ivshmem_ring/driver_api.h"

#include <cstdint>
#include <map>
#include <mutex>

#include "guest_lib/connect.h"
#include "ivshmem_ring/transport.h"

namespace causeway::guest {

class RegionMemory {
 public:
  explicit RegionMemory(Connection& connection) : connection_(connection) {}

  // The session's bulk buffers, registered before any work exists (registering waits for the whole device).
  CUresult AddBulkArena(Bulk* bulks);

  // `bytes` of pinned memory, aligned to 512. CUDA_ERROR_OUT_OF_MEMORY when the region is full.
  CUresult Allocate(uint64_t bytes, void** address);
  // False if no allocation starts there.
  bool Free(void* address);
  // Start and size of the allocation that holds the address; false if none does.
  bool Find(uint64_t address, uint64_t* start, uint64_t* bytes, uint32_t* flags = nullptr);
  void SetFlags(void* address, uint32_t flags);
  // True for every address that could be region memory: cheap, for classifying pointers.
  bool InWindow(uint64_t address) const {
    return address - connection_.window_address < connection_.region_bytes;
  }

 private:
  struct Arena {
    uint64_t bytes = 0;
    std::map<uint64_t, uint64_t> free;  // offset in region -> bytes
  };
  struct Allocation {
    uint64_t bytes;
    uint32_t flags;
    uint64_t arena;
  };
  CUresult AddArena(uint64_t bytes, uint64_t* offset);
  CUresult Full(uint64_t bytes) const;  // says so, with the setting to change
  bool Carve(uint64_t bytes, uint64_t* offset, uint64_t* arena);

  Connection& connection_;
  std::mutex mutex_;
  std::map<uint64_t, Arena> arenas_;            // by offset
  std::map<uint64_t, Allocation> allocations_;  // by offset
};

}  // namespace causeway::guest
