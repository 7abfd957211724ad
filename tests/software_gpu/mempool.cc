// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation and memory pools.
#include "tests/software_gpu/mempool.h"

#include <array>
#include <mutex>

#include "tests/software_gpu/config.h"
#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/handles.h"
#include "tests/software_gpu/memory.h"
#include "tests/software_gpu/stream.h"
#include "tests/software_gpu/stream_handles.h"

namespace causeway::software_gpu {
namespace {

Registry<CUmemoryPool, MemoryPool>& Pools() {
  static auto* pools = new Registry<CUmemoryPool, MemoryPool>;
  return *pools;
}

MemoryPoolRef MakePool(CUdevice device, bool is_default, bool on_host = false) {
  auto pool = std::make_shared<MemoryPool>();
  pool->device = device;
  pool->is_default = is_default;
  pool->on_host = on_host;
  pool->handle = Pools().Add(pool);
  return pool;
}

MemoryPoolRef DefaultPool(CUdevice device) {
  static auto* pools = [] {
    auto* list = new std::vector<MemoryPoolRef>;
    for (int i = 0; i < GetConfig().device_count; ++i) list->push_back(MakePool(i, true));
    return list;
  }();
  return (*pools)[static_cast<size_t>(device)];
}

MemoryPoolRef DefaultHostPool() {
  static auto* pool = new MemoryPoolRef(MakePool(0, true, true));
  return *pool;
}

struct CurrentPools {
  std::mutex mutex;
  std::array<MemoryPoolRef, 16> by_device;  // null: the default pool
  MemoryPoolRef of_host;
};

CurrentPools& Current() {
  static auto* pools = new CurrentPools;
  return *pools;
}

MemoryPoolRef CurrentPool(CUdevice device) {
  std::lock_guard lock(Current().mutex);
  MemoryPoolRef& pool = Current().by_device[static_cast<size_t>(device)];
  return pool != nullptr ? pool : DefaultPool(device);
}

MemoryPoolRef CurrentHostPool() {
  std::lock_guard lock(Current().mutex);
  return Current().of_host != nullptr ? Current().of_host : DefaultHostPool();
}

// Calls the one that the location has pools at: the host, which is one node here, or a device.
template <typename OfHost, typename OfDevice>
CUresult AtLocation(const CUmemLocation* location, CUmemAllocationType type, const OfHost& of_host,
                    const OfDevice& of_device) {
  if (location == nullptr || type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (location->type == CU_MEM_LOCATION_TYPE_HOST) return of_host();
  if (location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) return CUDA_ERROR_NOT_SUPPORTED;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  return IsDevice(location->id) ? of_device() : CUDA_ERROR_INVALID_DEVICE;
}

// The allocation is made at once, in the caller's thread; only its release follows the stream's order.
CUresult AllocateOnStream(const ContextRef& context, CUdeviceptr* dptr, size_t bytes, MemoryPoolRef pool,
                          CUstream handle) {
  if (dptr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream = FindStream(context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes == 0) {  // unlike cuMemAlloc, no error
    *dptr = 0;
    return CUDA_SUCCESS;
  }
  AllocationRef allocation = AllocateDeviceMemory(context, bytes, MemoryKind::kPool);
  if (allocation == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (IsCapturing(stream)) {
    std::lock_guard lock(GraphLock());
    allocation->internal = true;  // owned by the graph: freed with it
    if (stream->capture != nullptr) stream->capture->graph->allocations.push_back(allocation);
  } else {
    allocation->pool = pool;
    pool->AddUse(allocation->mapped_bytes);
  }
  *dptr = allocation->base;
  return Submit(stream, {CU_GRAPH_NODE_TYPE_MEM_ALLOC, [] {}, nullptr});
}

CUresult FreeOnStream(const ContextRef& context, CUdeviceptr address, CUstream handle) {
  StreamRef stream = FindStream(context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  AllocationRef allocation = FindAllocation(address);
  bool device_memory = allocation != nullptr &&
                       (allocation->kind == MemoryKind::kPool || allocation->kind == MemoryKind::kDevice);
  if (!device_memory || allocation->base != address) return CUDA_ERROR_INVALID_VALUE;
  if (IsCapturing(stream)) return Submit(stream, {CU_GRAPH_NODE_TYPE_MEM_FREE, [] {}, nullptr});
  if (allocation->internal || allocation->free_queued.exchange(true)) return CUDA_ERROR_INVALID_VALUE;
  return Submit(stream, {CU_GRAPH_NODE_TYPE_MEM_FREE, [allocation] { ReleaseMemory(allocation); }, nullptr});
}

// In the order in which NVIDIA's driver looks (580.159). A device may not lose the pools of its own memory.
CUresult CheckAccess(const MemoryPool& pool, const CUmemAccessDesc& access) {
  const auto& [place, flags] = access;
  if (place.type != CU_MEM_LOCATION_TYPE_DEVICE || flags == CU_MEM_ACCESS_FLAGS_PROT_READ)
    return CUDA_ERROR_NOT_SUPPORTED;
  const bool takes = flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
  const bool own = !pool.on_host && place.id == pool.device;
  if (!IsDevice(place.id) || (takes && own)) return CUDA_ERROR_INVALID_DEVICE;
  return takes || flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

template <typename Body>
CUresult OnPool(const char* function, CUmemoryPool handle, const Body& body) {
  return OnDevice(function, [&]() -> CUresult {
    MemoryPoolRef pool = Pools().Find(handle);
    return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : body(pool);
  });
}

CUresult GetPoolAttribute(const MemoryPool& pool, CUmemPool_attribute attribute, void* value) {
  auto* number = static_cast<cuuint64_t*>(value);
  auto* flag = static_cast<int*>(value);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      *flag = pool.reuse_event_dependencies.load();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      *flag = pool.reuse_opportunistic.load();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *flag = pool.reuse_internal_dependencies.load();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *number = pool.release_threshold.load();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *number = pool.used_bytes.load();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *number = pool.used_high_bytes.load();
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult SetPoolAttribute(MemoryPool& pool, CUmemPool_attribute attribute, const void* value) {
  auto number = [&] { return *static_cast<const cuuint64_t*>(value); };
  auto flag = [&] { return *static_cast<const int*>(value); };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      pool.reuse_event_dependencies.store(flag());
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      pool.reuse_opportunistic.store(flag());
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      pool.reuse_internal_dependencies.store(flag());
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool.release_threshold.store(number());
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (number() != 0) return CUDA_ERROR_INVALID_VALUE;  // may only be reset
      pool.used_high_bytes.store(pool.used_bytes.load());
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

void MemoryPool::AddUse(uint64_t bytes) {
  uint64_t used = used_bytes.fetch_add(bytes) + bytes;
  uint64_t high = used_high_bytes.load();
  while (high < used && !used_high_bytes.compare_exchange_weak(high, used)) {
  }
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) {
    return AllocateOnStream(context, dptr, bytesize, CurrentPool(context->device), hStream);
  });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) -> CUresult {
    MemoryPoolRef found = Pools().Find(pool);
    if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return AllocateOnStream(context, dptr, bytesize, found, hStream);
  });
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
  return InContextOfStream(__func__, hStream,
                           [&](const ContextRef& context) { return FreeOnStream(context, dptr, hStream); });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool_out, CUdevice dev) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (pool_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
    *pool_out = DefaultPool(dev)->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice dev) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (pool == nullptr || dev < 0) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
    *pool = CurrentPool(dev)->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  return OnPool(__func__, pool, [&](const MemoryPoolRef& found) -> CUresult {
    if (!IsDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
    if (found->device != dev || found->on_host) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(Current().mutex);
    Current().by_device[static_cast<size_t>(dev)] = found;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool_out, CUmemLocation* location, CUmemAllocationType type) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (pool_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto give = [&](const MemoryPoolRef& pool) { return *pool_out = pool->handle, CUDA_SUCCESS; };
    return AtLocation(
        location, type, [&] { return give(DefaultHostPool()); },
        [&] { return give(DefaultPool(location->id)); });
  });
}

CUresult cuMemGetMemPool(CUmemoryPool* pool_out, CUmemLocation* location, CUmemAllocationType type) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (pool_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto give = [&](const MemoryPoolRef& pool) { return *pool_out = pool->handle, CUDA_SUCCESS; };
    return AtLocation(
        location, type, [&] { return give(CurrentHostPool()); },
        [&] { return give(CurrentPool(location->id)); });
  });
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  return OnPool(__func__, pool, [&](const MemoryPoolRef& found) -> CUresult {
    const auto set_host = [&]() -> CUresult {
      if (!found->on_host) return CUDA_ERROR_INVALID_VALUE;
      std::lock_guard lock(Current().mutex);
      Current().of_host = found;
      return CUDA_SUCCESS;
    };
    return AtLocation(location, type, set_host, [&] { return cuDeviceSetMemPool(location->id, pool); });
  });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (pool == nullptr || poolProps == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
    // Device memory is the process's own here, so a pool on the host is one like any other.
    const bool on_host = poolProps->location.type == CU_MEM_LOCATION_TYPE_HOST;
    if (poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        (poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE && !on_host)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
      return on_host ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
    if (!on_host && !IsDevice(poolProps->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    *pool = MakePool(on_host ? 0 : poolProps->location.id, false, on_host)->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return OnPool(__func__, pool, [&](const MemoryPoolRef& found) -> CUresult {
    if (found->is_default) return CUDA_ERROR_INVALID_VALUE;
    Pools().Remove(pool);
    std::lock_guard lock(Current().mutex);
    MemoryPoolRef& current =
        found->on_host ? Current().of_host : Current().by_device[static_cast<size_t>(found->device)];
    if (current == found) current = nullptr;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
  // Nothing is held back, so there is nothing to trim.
  return OnPool(__func__, pool, [](const MemoryPoolRef&) { return CUDA_SUCCESS; });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  return OnPool(__func__, pool, [&](const MemoryPoolRef& found) -> CUresult {
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE : GetPoolAttribute(*found, attr, value);
  });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  return OnPool(__func__, pool, [&](const MemoryPoolRef& found) -> CUresult {
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE : SetPoolAttribute(*found, attr, value);
  });
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* map, size_t count) {
  if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
  return OnPool(__func__, pool, [&](const MemoryPoolRef& found) -> CUresult {
    // NVIDIA's driver refuses a null list of no locations, too.
    if (map == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      if (const CUresult result = CheckAccess(*found, map[i])) return result;
    }
    const std::lock_guard lock(found->mutex);
    for (size_t i = 0; i < count; ++i) found->access[map[i].location.id] = map[i].flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* location) {
  return OnPool(__func__, pool, [&](const MemoryPoolRef& found) -> CUresult {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (!found->on_host || location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_SUCCESS;
    const std::lock_guard lock(found->mutex);
    const auto set = found->access.find(location->id);
    *flags = set != found->access.end() ? set->second : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
