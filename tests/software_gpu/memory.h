// SPDX-License-Identifier: Apache-2.0
// The one address space: what is allocated, registered and therefore addressable by kernels and copies.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "tests/software_gpu/context.h"
#include "tests/software_gpu/driver.h"
#include "tests/software_gpu/interpreter.h"

namespace causeway::software_gpu {

struct MemoryPool;

enum class MemoryKind {
  kDevice,      // cuMemAlloc, module variables
  kPool,        // cuMemAllocAsync
  kHost,        // cuMemHostAlloc, cuMemAllocHost
  kRegistered,  // cuMemHostRegister
  kManaged,     // cuMemAllocManaged
  kMapped,      // cuMemMap, cuIpcOpenMemHandle: the pages are somebody else's
};

// What was said of one page of managed memory.
struct MemoryHints {
  struct Place {
    int type = CU_MEM_LOCATION_TYPE_INVALID;
    int id = CU_DEVICE_INVALID;
    bool operator==(const Place&) const = default;
  };
  bool read_mostly = false;
  Place preferred, prefetched;
  std::set<int> accessed_by;  // CU_DEVICE_CPU sorts first
};

struct Allocation {
  uintptr_t base = 0;
  size_t bytes = 0;         // as requested
  size_t mapped_bytes = 0;  // as reserved
  MemoryKind kind = MemoryKind::kDevice;
  CUdevice device = 0;
  std::weak_ptr<Context> context;
  unsigned flags = 0;                    // the allocating call's
  std::atomic<bool> read_only{false};    // for the device
  uint64_t id = 0;                       // CU_POINTER_ATTRIBUTE_BUFFER_ID
  bool internal = false;                 // a module's variable: not freed by cuMemFree
  std::atomic<bool> free_queued{false};  // cuMemFreeAsync was called
  std::shared_ptr<MemoryPool> pool;
  std::map<uint64_t, MemoryHints> hints;  // by first page, up to the next; guarded in managed_memory.cc
  void* address() const { return reinterpret_cast<void*>(base); }
  bool IsHost() const { return kind == MemoryKind::kHost || kind == MemoryKind::kRegistered; }
};
using AllocationRef = std::shared_ptr<Allocation>;

// Reserves memory and makes it addressable. Null when the device (or the machine) has no more.
AllocationRef AllocateDeviceMemory(const ContextRef& context, size_t bytes, MemoryKind kind);
AllocationRef AllocateHostMemory(const ContextRef& context, size_t bytes, MemoryKind kind, unsigned flags);

// Makes the caller's own pages addressable; 712 when they overlap what already is.
CUresult RegisterHostMemory(const ContextRef& context, void* address, size_t bytes, unsigned flags);

// Makes pages addressable that were mapped as device memory; the caller unmaps them, in ReleaseMemory.
AllocationRef AdoptMemory(const ContextRef& context, uintptr_t base, size_t bytes, CUdevice device,
                          bool read_only = false);
// Of adopted memory; calls `protect` while no work touches any memory.
void ChangeAccess(const AllocationRef& allocation, bool read_only, const std::function<void()>& protect);
// The device whose memory file (shared_names.h) holds an allocation of cuMemAlloc, and where in it.
bool ArenaPlace(const Allocation& allocation, int* device, size_t* offset);

// Takes the allocation out of the address space and returns its pages. Does not wait for the device, but for
// work that is just touching pages that are going to be unmapped, here or by the caller when this returns.
// `unmap`, if any, is called while no work touches memory, also where the allocation was taken out before.
void ReleaseMemory(const AllocationRef& allocation, const std::function<void()>& unmap = nullptr);

// The allocation that holds the address; null when there is none.
AllocationRef FindAllocation(uint64_t address);
// Memory of both sides: who copies synchronously may look at it at once.
inline bool IsManagedMemory(uint64_t address) {
  AllocationRef allocation = FindAllocation(address);
  return allocation != nullptr && allocation->kind == MemoryKind::kManaged;
}

// What copies do with an address range.
enum class RangeClass { kDevice, kPinned, kPageable, kInvalid };

// kInvalid: starts inside an allocation and ends outside it.
RangeClass ClassifyRange(uint64_t address, size_t bytes);

// Whether the range lies in one allocation, i.e. is addressable by the device.
bool IsAddressable(uint64_t address, size_t bytes);

void FreeMemoryOf(Context& context);

// All devices' memory goes to the host, and comes back at its addresses; no call and no work runs meanwhile.
void SaveDeviceMemory();
void LoadDeviceMemory();

size_t DeviceMemoryInUse(CUdevice device);
size_t DeviceMemoryFree(CUdevice device);

// What one launch may touch. Used by one thread at a time.
std::unique_ptr<AddressSpace> MakeAddressSpace();

}  // namespace causeway::software_gpu
