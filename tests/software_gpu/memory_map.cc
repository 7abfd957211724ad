// SPDX-License-Identifier: Apache-2.0
// The map of all allocations, device arenas, and the lock-free view that running kernels consult.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "tests/software_gpu/config.h"
#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/kept_mapped.h"
#include "tests/software_gpu/memory.h"
#include "tests/software_gpu/mempool.h"
#include "tests/software_gpu/shared_names.h"
#include "tests/software_gpu/texture.h"

namespace causeway::software_gpu {
namespace {

constexpr size_t kDeviceGranuleBytes = 512;  // device pointers are multiples of it
constexpr size_t kPageBytes = 4096;

size_t RoundUp(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

struct Range {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool read_only = false;
};
using RangeTable = std::vector<Range>;  // sorted, without overlaps

// One device's memory: a reserved address range, handed out first fit.
struct Arena {
  uintptr_t base = 0;
  size_t bytes = 0;
  size_t used = 0;
  int file = -1;                         // what it is mapped from
  std::map<size_t, size_t> free_blocks;  // offset -> bytes
};

struct MemoryMap {
  mutable std::shared_mutex mutex;
  std::map<uintptr_t, AllocationRef> allocations;                       // by base
  std::vector<Arena> arenas;                                            // by device
  std::vector<std::pair<AllocationRef, std::vector<std::byte>>> saved;  // SaveDeviceMemory
  std::shared_ptr<const RangeTable> table;                              // of generation `table_generation`
  uint64_t table_generation = 0;
  // Changes with every change of `allocations`; read without the lock by running kernels.
  std::atomic<uint64_t> generation{1};
};

MemoryMap& Map() {
  static auto* map = new MemoryMap;
  return *map;
}

// Caller holds the map's mutex exclusively.
bool PrepareArena(MemoryMap& map, CUdevice device) {
  if (map.arenas.empty()) map.arenas.resize(static_cast<size_t>(GetConfig().device_count));
  Arena& arena = map.arenas[static_cast<size_t>(device)];
  if (arena.base != 0) return true;
  size_t bytes = GetConfig().device_memory_bytes;
#ifdef __SANITIZE_THREAD__
  // TSan allows a program few ranges, and guests expect device memory in one of two: this lies in both.
  void* const wanted =
      reinterpret_cast<void*>(uintptr_t{0x10'0000'0000} * static_cast<uintptr_t>(device + 1));
#else
  const uint64_t first = GetConfig().memory_at_gib << 30;
  void* const wanted =
      first != 0 ? reinterpret_cast<void*>(first + static_cast<uintptr_t>(device) * bytes) : nullptr;
#endif
  arena.file = MakeSharedFile(device);
  if (arena.file < 0 || ftruncate(arena.file, static_cast<off_t>(bytes)) != 0) return false;
  void* address = mmap(wanted, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, arena.file, 0);
  if (address == MAP_FAILED) return false;
  arena.base = reinterpret_cast<uintptr_t>(address);
  arena.bytes = bytes;
  arena.free_blocks.emplace(0, bytes);
  return true;
}

// Returns 0 when no free block is large enough.
uintptr_t TakeFromArena(Arena& arena, size_t bytes) {
  for (auto block = arena.free_blocks.begin(); block != arena.free_blocks.end(); ++block) {
    if (block->second < bytes) continue;
    size_t offset = block->first;
    size_t rest = block->second - bytes;
    arena.free_blocks.erase(block);
    if (rest != 0) arena.free_blocks.emplace(offset + bytes, rest);
    arena.used += bytes;
    return arena.base + offset;
  }
  return 0;
}

void ReturnToArena(Arena& arena, uintptr_t base, size_t bytes) {
  uintptr_t first_page = RoundUp(base, kPageBytes);
  uintptr_t end_page = (base + bytes) / kPageBytes * kPageBytes;
  if (end_page > first_page) {
    madvise(reinterpret_cast<void*>(first_page), end_page - first_page, MADV_REMOVE);
  }
  arena.used -= bytes;
  size_t offset = base - arena.base;
  auto next = arena.free_blocks.lower_bound(offset);
  if (next != arena.free_blocks.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = arena.free_blocks.erase(next);
  }
  if (next != arena.free_blocks.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return;
    }
  }
  arena.free_blocks.emplace(offset, bytes);
}

// Caller holds the map's mutex exclusively.
void Insert(MemoryMap& map, const AllocationRef& allocation) {
  static uint64_t next_id = 1;
  allocation->id = next_id++;
  map.allocations.emplace(allocation->base, allocation);
  // Release pairs with the acquire in LaunchAddressSpace::Refresh.
  map.generation.fetch_add(1, std::memory_order_release);
}

// Caller holds the map's mutex.
AllocationRef FindLocked(const MemoryMap& map, uint64_t address) {
  auto next = map.allocations.upper_bound(address);
  if (next == map.allocations.begin()) return nullptr;
  const AllocationRef& candidate = std::prev(next)->second;
  return address - candidate->base < candidate->bytes ? candidate : nullptr;
}

std::shared_ptr<const RangeTable> CurrentTable(uint64_t* generation) {
  MemoryMap& map = Map();
  std::unique_lock lock(map.mutex);
  *generation = map.generation.load(std::memory_order_relaxed);
  if (map.table == nullptr || map.table_generation != *generation) {
    auto table = std::make_shared<RangeTable>();
    table->reserve(map.allocations.size());
    for (const auto& entry : map.allocations) {
      const Allocation& allocation = *entry.second;
      table->push_back({allocation.base, allocation.base + allocation.mapped_bytes, allocation.read_only});
    }
    map.table = std::move(table);
    map.table_generation = *generation;
  }
  return map.table;
}

// A snapshot of the map. What was allocated after the launch began is seen too: a miss looks again if the map
// has changed. What is freed meanwhile stays mapped and addressable for the turn that is under way.
class LaunchAddressSpace : public AddressSpace {
 public:
  LaunchAddressSpace() : table_(CurrentTable(&generation_)) {}

  bool Contains(uint64_t address, size_t bytes, Access access) const override {
    if (address >= last_.begin && address < last_.end)
      return bytes <= last_.end - address && (!last_.read_only || access == Access::kRead);
    if (Search(address, bytes, access)) return true;
    return Refresh() && Search(address, bytes, access);
  }
  std::shared_lock<std::shared_mutex> Keep() const override {
    std::shared_lock kept(KeptMapped());
    if (Refresh()) last_ = {};
    return kept;
  }
  bool ReadTexture(const TextureRead& read, uint32_t* texel) const override {
    return ReadTextureObject(*this, read, texel);
  }
  std::byte* FindSurfaceElement(const SurfaceAccess& access) const override {
    return FindInSurfaceObject(*this, access);
  }

 private:
  bool Search(uint64_t address, size_t bytes, Access access) const {
    auto next = std::upper_bound(table_->begin(), table_->end(), address,
                                 [](uint64_t value, const Range& range) { return value < range.begin; });
    if (next == table_->begin()) return false;
    const Range& range = *std::prev(next);
    if (address >= range.end || bytes > range.end - address) return false;
    if (range.read_only && access == Access::kWrite) return false;
    last_ = range;
    return true;
  }

  bool Refresh() const {
    if (Map().generation.load(std::memory_order_acquire) == generation_) return false;
    table_ = CurrentTable(&generation_);
    return true;
  }

  mutable uint64_t generation_ = 0;
  mutable std::shared_ptr<const RangeTable> table_;
  mutable Range last_;
};

}  // namespace

namespace {

// Whether the process may read, and write unless `read_only`, the whole range.
bool IsMapped(uintptr_t begin, size_t bytes, bool read_only) {
  std::ifstream maps("/proc/self/maps");
  uintptr_t covered = begin;
  for (std::string line; covered < begin + bytes && std::getline(maps, line);) {
    uintptr_t from = 0, to = 0;
    char modes[5] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &from, &to, modes) != 3 || to <= covered) continue;
    if (from > covered || modes[0] != 'r' || (modes[1] != 'w' && !read_only)) return false;
    covered = to;
  }
  return covered >= begin + bytes;
}

}  // namespace

AllocationRef AllocateDeviceMemory(const ContextRef& context, size_t bytes, MemoryKind kind) {
  if (bytes == 0 || bytes > GetConfig().device_memory_bytes) return nullptr;
  auto allocation = std::make_shared<Allocation>();
  allocation->bytes = bytes;
  allocation->mapped_bytes = RoundUp(bytes, kDeviceGranuleBytes);
  allocation->kind = kind;
  allocation->device = context->device;
  allocation->context = context;
  MemoryMap& map = Map();
  std::unique_lock lock(map.mutex);
  if (!PrepareArena(map, context->device)) return nullptr;
  allocation->base =
      TakeFromArena(map.arenas[static_cast<size_t>(context->device)], allocation->mapped_bytes);
  if (allocation->base == 0) return nullptr;
  Insert(map, allocation);
  return allocation;
}

namespace {

// Whether the process may have so much more pinned and managed memory. Caller holds the map's mutex.
bool FitsHost(const MemoryMap& map, size_t bytes) {
  const size_t most = GetConfig().host_memory_bytes;
  if (most == 0) return true;
  size_t used = 0;
  for (const auto& [base, allocation] : map.allocations) {
    const bool on_host = allocation->kind == MemoryKind::kHost || allocation->kind == MemoryKind::kManaged;
    if (on_host) used += allocation->mapped_bytes;
  }
  return used <= most && bytes <= most - used;
}

}  // namespace

AllocationRef AllocateHostMemory(const ContextRef& context, size_t bytes, MemoryKind kind, unsigned flags) {
  if (bytes == 0 || bytes > SIZE_MAX - kPageBytes) return nullptr;
  size_t mapped = RoundUp(bytes, kPageBytes);
  MemoryMap& map = Map();
  std::unique_lock lock(map.mutex);
  if (!FitsHost(map, mapped)) return nullptr;
  void* address =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  auto allocation = std::make_shared<Allocation>();
  allocation->base = reinterpret_cast<uintptr_t>(address);
  allocation->bytes = bytes;
  allocation->mapped_bytes = mapped;
  allocation->kind = kind;
  allocation->device = context->device;
  allocation->context = context;
  allocation->flags = flags;
  Insert(map, allocation);
  return allocation;
}

CUresult RegisterHostMemory(const ContextRef& context, void* address, size_t bytes, unsigned flags) {
  const bool read_only = (flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;
  if (!IsMapped(reinterpret_cast<uintptr_t>(address), bytes, read_only)) return CUDA_ERROR_INVALID_VALUE;
  auto allocation = std::make_shared<Allocation>();
  allocation->base = reinterpret_cast<uintptr_t>(address);
  if (bytes > UINTPTR_MAX - allocation->base) return CUDA_ERROR_INVALID_VALUE;
  allocation->bytes = bytes;
  allocation->mapped_bytes = bytes;
  allocation->kind = MemoryKind::kRegistered;
  allocation->device = context->device;
  allocation->context = context;
  allocation->flags = flags;
  allocation->read_only = read_only;
  MemoryMap& map = Map();
  std::unique_lock lock(map.mutex);
  auto next = map.allocations.upper_bound(allocation->base);
  if (next != map.allocations.end() && next->first < allocation->base + bytes) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  if (AllocationRef known = FindLocked(map, allocation->base)) {
    return known->kind == MemoryKind::kRegistered ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                                                  : CUDA_ERROR_INVALID_VALUE;
  }
  Insert(map, allocation);
  return CUDA_SUCCESS;
}

AllocationRef AdoptMemory(const ContextRef& context, uintptr_t base, size_t bytes, CUdevice device,
                          bool read_only) {
  auto allocation = std::make_shared<Allocation>();
  allocation->base = base;
  allocation->bytes = bytes;
  allocation->mapped_bytes = bytes;
  allocation->kind = MemoryKind::kMapped;
  allocation->read_only = read_only;
  allocation->device = device;
  allocation->context = context;
  MemoryMap& map = Map();
  std::unique_lock lock(map.mutex);
  Insert(map, allocation);
  return allocation;
}

bool ArenaPlace(const Allocation& allocation, int* device, size_t* offset) {
  std::shared_lock lock(Map().mutex);
  if (Map().arenas.empty()) return false;
  const Arena& arena = Map().arenas[static_cast<size_t>(allocation.device)];
  *device = allocation.device;
  *offset = allocation.base - arena.base;
  return arena.file >= 0;
}

namespace {

// Nobody finds it any more. Its pages are returned where they stay mapped. False: it was taken out before.
bool TakeOut(const AllocationRef& allocation) {
  MemoryMap& map = Map();
  const std::unique_lock lock(map.mutex);
  auto found = map.allocations.find(allocation->base);
  if (found == map.allocations.end() || found->second != allocation) return false;
  map.allocations.erase(found);
  map.generation.fetch_add(1, std::memory_order_release);
  if (allocation->pool != nullptr) allocation->pool->DropUse(allocation->mapped_bytes);
  if (allocation->kind == MemoryKind::kDevice || allocation->kind == MemoryKind::kPool)
    ReturnToArena(map.arenas[static_cast<size_t>(allocation->device)], allocation->base,
                  allocation->mapped_bytes);
  return true;
}

}  // namespace

void ReleaseMemory(const AllocationRef& allocation, const std::function<void()>& unmap) {
  const bool was_there = TakeOut(allocation);
  if (allocation->kind == MemoryKind::kDevice || allocation->kind == MemoryKind::kPool) return;
  const std::unique_lock alone(KeptMapped());
  const bool own = allocation->kind == MemoryKind::kHost || allocation->kind == MemoryKind::kManaged;
  if (was_there && own) munmap(allocation->address(), allocation->mapped_bytes);
  if (unmap) unmap();
}

void ChangeAccess(const AllocationRef& allocation, bool read_only, const std::function<void()>& protect) {
  const std::unique_lock alone(KeptMapped());
  allocation->read_only = read_only;
  Map().generation.fetch_add(1, std::memory_order_release);
  protect();
}

std::shared_mutex& KeptMapped() {
  static std::shared_mutex& mutex = *new std::shared_mutex;
  return mutex;
}

bool MayTouch(const Touched& range) {
  if (range.pageable) return true;
  const AllocationRef allocation = FindAllocation(range.address);
  return allocation != nullptr && range.bytes <= allocation->bytes - (range.address - allocation->base) &&
         !(range.written && allocation->read_only);
}

bool MayTouchOrFault(std::initializer_list<Touched> ranges) {
  for (const Touched& range : ranges) {
    if (MayTouch(range)) continue;
    char what[160];
    const char* const done = range.written ? "written" : "read";
    std::snprintf(what, sizeof what, "%zu bytes at 0x%llx are %s by queued work and may not be (any more)",
                  range.bytes, static_cast<unsigned long long>(range.address), done);
    RaiseFault(CUDA_ERROR_ILLEGAL_ADDRESS, what);
    return false;
  }
  return true;
}

AllocationRef FindAllocation(uint64_t address) {
  MemoryMap& map = Map();
  std::shared_lock lock(map.mutex);
  return FindLocked(map, address);
}

RangeClass ClassifyRange(uint64_t address, size_t bytes) {
  AllocationRef allocation = FindAllocation(address);
  if (allocation == nullptr) return RangeClass::kPageable;
  if (bytes > allocation->bytes - (address - allocation->base)) return RangeClass::kInvalid;
  return allocation->IsHost() ? RangeClass::kPinned : RangeClass::kDevice;
}

bool IsAddressable(uint64_t address, size_t bytes) {
  AllocationRef allocation = FindAllocation(address);
  return allocation != nullptr && bytes <= allocation->bytes - (address - allocation->base);
}

void FreeMemoryOf(Context& context) {
  std::vector<AllocationRef> owned;
  {
    std::shared_lock lock(Map().mutex);
    for (const auto& entry : Map().allocations) {
      if (entry.second->context.lock().get() == &context) owned.push_back(entry.second);
    }
  }
  for (const AllocationRef& allocation : owned) ReleaseMemory(allocation);
}

void SaveDeviceMemory() {
  MemoryMap& map = Map();
  const std::unique_lock lock(map.mutex);
  for (const auto& [base, allocation] : map.allocations) {
    if (allocation->kind != MemoryKind::kDevice && allocation->kind != MemoryKind::kPool) continue;
    const auto* bytes = static_cast<const std::byte*>(allocation->address());
    map.saved.emplace_back(allocation, std::vector(bytes, bytes + allocation->bytes));
    std::memset(allocation->address(), 0, allocation->bytes);
  }
}

void LoadDeviceMemory() {
  MemoryMap& map = Map();
  const std::unique_lock lock(map.mutex);
  for (const auto& [allocation, bytes] : map.saved)
    std::memcpy(allocation->address(), bytes.data(), bytes.size());
  map.saved.clear();
}

size_t DeviceMemoryInUse(CUdevice device) {
  std::shared_lock lock(Map().mutex);
  return Map().arenas.empty() ? 0 : Map().arenas[static_cast<size_t>(device)].used;
}

size_t DeviceMemoryFree(CUdevice device) {
  return GetConfig().device_memory_bytes - DeviceMemoryInUse(device);
}

std::unique_ptr<AddressSpace> MakeAddressSpace() {
  return std::make_unique<LaunchAddressSpace>();
}

}  // namespace causeway::software_gpu
