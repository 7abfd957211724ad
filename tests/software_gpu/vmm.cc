// SPDX-License-Identifier: Apache-2.0
// Virtual memory management and memory of other processes. Every allocation is a memory file, mapped where
// the program wants it; the device's arena is one too, so that another process can map a piece of it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "tests/software_gpu/memory.h"
#include "tests/software_gpu/shared_names.h"
#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {
namespace {

constexpr size_t kGranularity = 2u << 20;
constexpr size_t kPage = 4096;

struct Physical {
  int file = -1;
  size_t bytes = 0;
  CUmemAllocationProp properties{};
  int references = 1;  // handles given out
  ~Physical() { close(file); }
};
using PhysicalRef = std::shared_ptr<Physical>;

struct Mapping {
  size_t bytes = 0;
  PhysicalRef memory;
  CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  AllocationRef allocation;  // while accessible
};

struct Opened {
  AllocationRef allocation;
  void* start = nullptr;  // of the mapping, in whole pages
  size_t mapped = 0;
  int count = 0;
};

// What stands in CUipcMemHandle.
struct IpcName {
  char magic[8];
  int32_t pid;
  int32_t device;
  uint64_t offset;
  uint64_t bytes;
  uint64_t id;
};
constexpr char kIpcMagic[8] = {'s', 'w', 'g', 'p', 'u', 'i', 'p', 'c'};
static_assert(sizeof(IpcName) <= sizeof(CUipcMemHandle));

struct Table {
  std::mutex mutex;
  std::map<uint64_t, size_t> reservations;
  std::map<uint64_t, PhysicalRef> handles;
  std::map<uint64_t, Mapping> mappings;
  std::map<std::string, Opened> opened;  // by the handle's bytes
  uint64_t next = 0x7000'0000'0001;
};
Table& TheTable() {
  static auto* table = new Table;
  return *table;
}

bool IsWhole(uint64_t value) {
  return value != 0 && value % kGranularity == 0;
}

CUresult CheckProperties(const CUmemAllocationProp* prop) {
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!IsDevice(prop->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  const unsigned unknown = prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return unknown == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

// Inside one reservation.
bool IsReserved(const Table& table, uint64_t address, size_t bytes) {
  auto next = table.reservations.upper_bound(address);
  if (next == table.reservations.begin()) return false;
  --next;
  return address - next->first <= next->second && bytes <= next->second - (address - next->first);
}

void* Keep(uint64_t address, size_t bytes) {  // reserved, but nobody's
  return mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

CUresult SetAccess(const ContextRef& context, uint64_t base, Mapping& mapping, CUmemAccess_flags access) {
  const int protection = access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                         : access == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                                      : PROT_NONE;
  const auto protect = [&] { mprotect(reinterpret_cast<void*>(base), mapping.bytes, protection); };
  const bool read_only = access == CU_MEM_ACCESS_FLAGS_PROT_READ;
  mapping.access = access;
  if (mapping.allocation == nullptr) {
    protect();
    if (protection != PROT_NONE)
      mapping.allocation =
          AdoptMemory(context, base, mapping.bytes, mapping.memory->properties.location.id, read_only);
  } else if (protection == PROT_NONE) {
    ReleaseMemory(mapping.allocation, protect);
    mapping.allocation = nullptr;
  } else {
    ChangeAccess(mapping.allocation, read_only, protect);
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags) {
  return Initialised(__func__, [&]() -> CUresult {
    if (granularity == nullptr) return CUDA_ERROR_INVALID_VALUE;
    // Which place it is about makes no difference: NVIDIA's driver answers for the host as well.
    if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type == CU_MEM_LOCATION_TYPE_INVALID)
      return CUDA_ERROR_INVALID_VALUE;
    *granularity = kGranularity;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
#ifdef __SANITIZE_THREAD__
  return CUDA_ERROR_NOT_SUPPORTED;  // TSan ends a program that maps memory at the addresses that guests
                                    // expect
#endif
  return OnDevice(__func__, [&]() -> CUresult {
    if (ptr == nullptr || !IsWhole(size) || flags != 0 || (alignment & (alignment - 1)) != 0)
      return CUDA_ERROR_INVALID_VALUE;
    const size_t align = alignment > kGranularity ? alignment : kGranularity;
    // The wish, if it is free; otherwise with room to align.
    auto take = [&](uint64_t wish, size_t bytes) {
      void* at =
          mmap(reinterpret_cast<void*>(wish), bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (wish != 0 ? MAP_FIXED_NOREPLACE : 0), -1, 0);
      return at == MAP_FAILED ? 0 : reinterpret_cast<uint64_t>(at);
    };
    uint64_t at = addr != 0 && addr % align == 0 ? take(addr, size) : 0;
    if (at == 0) {
      const uint64_t loose = take(0, size + align);
      if (loose == 0) return CUDA_ERROR_OUT_OF_MEMORY;
      at = (loose + align - 1) / align * align;
      if (at != loose) munmap(reinterpret_cast<void*>(loose), at - loose);
      if (at != loose + align) munmap(reinterpret_cast<void*>(at + size), loose + align - at);
    }
    Table& table = TheTable();
    std::lock_guard lock(table.mutex);
    table.reservations[at] = size;
    *ptr = at;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  return OnDevice(__func__, [&]() -> CUresult {
    Table& table = TheTable();
    std::lock_guard lock(table.mutex);
    auto found = table.reservations.find(ptr);
    if (found == table.reservations.end() || found->second != size) return CUDA_ERROR_INVALID_VALUE;
    auto mapping = table.mappings.lower_bound(ptr);
    if (mapping != table.mappings.end() && mapping->first - ptr < size) return CUDA_ERROR_INVALID_VALUE;
    table.reservations.erase(found);
    munmap(reinterpret_cast<void*>(ptr), size);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* prop,
                     unsigned long long flags) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (handle == nullptr || flags != 0 || !IsWhole(size)) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult bad = CheckProperties(prop)) return bad;
    if (size > DeviceMemoryFree(prop->location.id)) return CUDA_ERROR_OUT_OF_MEMORY;
    auto memory = std::make_shared<Physical>();
    memory->file = memfd_create("software-gpu", MFD_CLOEXEC);
    if (memory->file < 0 || ftruncate(memory->file, off_t(size)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    memory->bytes = size;
    memory->properties = *prop;
    Table& table = TheTable();
    std::lock_guard lock(table.mutex);
    *handle = table.next += 16;
    table.handles[*handle] = std::move(memory);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return OnDevice(__func__, [&]() -> CUresult {
    Table& table = TheTable();
    std::lock_guard lock(table.mutex);
    auto found = table.handles.find(handle);
    if (found == table.handles.end()) return CUDA_ERROR_INVALID_VALUE;
    if (--found->second->references == 0) table.handles.erase(found);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return OnDevice(__func__, [&]() -> CUresult {
    Table& table = TheTable();
    std::lock_guard lock(table.mutex);
    auto found = table.handles.find(handle);
    if (found == table.handles.end() || flags != 0 || !IsWhole(size) || ptr % kGranularity != 0 ||
        offset != 0 || size > found->second->bytes || !IsReserved(table, ptr, size)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto next = table.mappings.lower_bound(ptr);
    if (next != table.mappings.end() && next->first - ptr < size) return CUDA_ERROR_INVALID_VALUE;
    if (next != table.mappings.begin() && std::prev(next)->first + std::prev(next)->second.bytes > ptr)
      return CUDA_ERROR_INVALID_VALUE;
    if (mmap(reinterpret_cast<void*>(ptr), size, PROT_NONE, MAP_SHARED | MAP_FIXED, found->second->file, 0) ==
        MAP_FAILED) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    table.mappings[ptr] = {size, found->second, CU_MEM_ACCESS_FLAGS_PROT_NONE, nullptr};
    return CUDA_SUCCESS;
  });
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  return OnDevice(__func__, [&]() -> CUresult {
    SynchronizeDevice();
    Table& table = TheTable();
    std::lock_guard lock(table.mutex);
    auto mapping = table.mappings.find(ptr);
    if (mapping == table.mappings.end() || size % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
    while (mapping != table.mappings.end() && mapping->first - ptr < size) {
      const auto keep = [&] { Keep(mapping->first, mapping->second.bytes); };
      if (mapping->second.allocation != nullptr) {
        ReleaseMemory(mapping->second.allocation, keep);
      } else {
        keep();
      }
      mapping = table.mappings.erase(mapping);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (desc == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    Table& table = TheTable();
    std::lock_guard lock(table.mutex);
    auto mapping = table.mappings.find(ptr);
    if (mapping == table.mappings.end()) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
      if (!IsDevice(desc[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
    }
    for (; mapping != table.mappings.end() && mapping->first - ptr < size; ++mapping) {
      if (CUresult bad = SetAccess(context, mapping->first, mapping->second, desc[0].flags)) return bad;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Table& table = TheTable();
    std::lock_guard lock(table.mutex);
    auto next = table.mappings.upper_bound(ptr);
    if (next == table.mappings.begin()) return CUDA_ERROR_INVALID_VALUE;
    --next;
    if (ptr - next->first >= next->second.bytes) return CUDA_ERROR_INVALID_VALUE;
    *flags = next->second.access;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                CUmemGenericAllocationHandle handle) {
  return OnDevice(__func__, [&]() -> CUresult {
    Table& table = TheTable();
    std::lock_guard lock(table.mutex);
    auto found = table.handles.find(handle);
    if (prop == nullptr || found == table.handles.end()) return CUDA_ERROR_INVALID_VALUE;
    *prop = found->second->properties;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  return OnDevice(__func__, [&]() -> CUresult {
    Table& table = TheTable();
    std::lock_guard lock(table.mutex);
    const auto address = reinterpret_cast<uint64_t>(addr);
    auto next = table.mappings.upper_bound(address);
    if (handle == nullptr || next == table.mappings.begin()) return CUDA_ERROR_INVALID_VALUE;
    --next;
    if (address - next->first >= next->second.bytes) return CUDA_ERROR_INVALID_VALUE;
    const PhysicalRef& memory = next->second.memory;
    for (const auto& [known, other] : table.handles) {
      if (other != memory) continue;
      ++memory->references;
      *handle = known;
      return CUDA_SUCCESS;
    }
    memory->references = 1;
    *handle = table.next += 16;
    table.handles[*handle] = memory;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  return OnDevice(__func__, [&]() -> CUresult {
    Table& table = TheTable();
    std::lock_guard lock(table.mutex);
    auto found = table.handles.find(handle);
    if (shareable == nullptr || flags != 0 || found == table.handles.end() ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        found->second->properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int file = fcntl(found->second->file, F_DUPFD_CLOEXEC, 0);
    if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    std::memcpy(shareable, &file, sizeof file);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  return OnDevice(__func__, [&]() -> CUresult {
    struct stat info;
    const auto file = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
    if (handle == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(file, &info) != 0 ||
        !S_ISREG(info.st_mode) || !IsWhole(uint64_t(info.st_size))) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto memory = std::make_shared<Physical>();
    memory->file = fcntl(file, F_DUPFD_CLOEXEC, 0);
    memory->bytes = size_t(info.st_size);
    memory->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    memory->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    memory->properties.location = {};
    memory->properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    Table& table = TheTable();
    std::lock_guard lock(table.mutex);
    *handle = table.next += 16;
    table.handles[*handle] = std::move(memory);
    return CUDA_SUCCESS;
  });
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr ptr) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    AllocationRef allocation = FindAllocation(ptr);
    IpcName name{};
    size_t offset = 0;
    if (handle == nullptr || allocation == nullptr || allocation->kind != MemoryKind::kDevice ||
        !ArenaPlace(*allocation, &name.device, &offset)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::memcpy(name.magic, kIpcMagic, sizeof name.magic);
    name.pid = getpid();
    name.offset = offset;
    name.bytes = allocation->bytes;
    name.id = allocation->id;
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &name, sizeof name);
    return CUDA_SUCCESS;
  });
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* ptr, CUipcMemHandle handle, unsigned int flags) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    IpcName name;
    std::memcpy(&name, &handle, sizeof name);
    if (ptr == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
        std::memcmp(name.magic, kIpcMagic, sizeof name.magic) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (name.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    Table& table = TheTable();
    std::lock_guard lock(table.mutex);
    Opened& opened = table.opened[std::string(reinterpret_cast<const char*>(&handle), sizeof handle)];
    if (opened.count == 0) {
      const std::string path = SharedPath(name.pid, name.device);
      const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
      if (file < 0) return CUDA_ERROR_INVALID_VALUE;
      const size_t inside = name.offset % kPage;
      opened.mapped = (inside + name.bytes + kPage - 1) / kPage * kPage;
      opened.start =
          mmap(nullptr, opened.mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, off_t(name.offset - inside));
      close(file);
      if (opened.start == MAP_FAILED) return CUDA_ERROR_MAP_FAILED;
      opened.allocation = AdoptMemory(context, reinterpret_cast<uint64_t>(opened.start) + inside, name.bytes,
                                      context->device);
    }
    ++opened.count;
    *ptr = opened.allocation->base;
    return CUDA_SUCCESS;
  });
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* ptr, CUipcMemHandle handle, unsigned int flags) {
  return cuIpcOpenMemHandle_v2(ptr, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr ptr) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    SynchronizeDevice();
    Table& table = TheTable();
    std::lock_guard lock(table.mutex);
    for (auto& [name, found] : table.opened) {
      Opened& opened = found;
      if (opened.count == 0 || opened.allocation->base != ptr) continue;
      if (--opened.count != 0) return CUDA_SUCCESS;
      ReleaseMemory(opened.allocation, [&] { munmap(opened.start, opened.mapped); });
      table.opened.erase(name);
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}

}  // extern "C"
