// SPDX-License-Identifier: Apache-2.0
// A driver that keeps its own books and has no memory, behind the worker's rows that count.
#pragma once
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "host_backend/worker/accounting/accounting.h"

namespace causeway::host {

inline constexpr uint64_t kMib = 1u << 20;

// The driver: only sizes, no memory.
struct Books {
  std::mutex mutex;
  uint64_t next = 1u << 20;
  std::map<CUdeviceptr, uint64_t> linear;
  std::map<CUdeviceptr, uint64_t> pooled;
  std::map<uint64_t, uint64_t> physical;
  uint64_t pool_reserved = 0, pool_used = 0;
  uint64_t pool_step = 2 * kMib;  // in which the pool grows
  uint64_t graph_reserved = 0, launches = 0;
  CUdeviceptr given_again = 0;  // the address of the next block; 0: a new one
  // What other threads do before the thread whose call this is has the answer.
  std::function<void()> once_unmapped, once_mapped;
  std::function<void(CUdeviceptr)> once_allocated;
  std::function<void()> once_destroying;  // the same before the pool's end
  std::function<void()> once_freeing;     // before a pool's memory is freed, or the free is refused
  std::function<void()> once_freed;       // after that
  bool refuses_frees = false;             // as in a stream that is being captured
  std::atomic<bool> pool_ended{false}, pool_named{false}, asked_when_ended{false};
};
inline Books books;
inline const auto kPool = reinterpret_cast<CUmemoryPool>(0x77);
inline const auto kDefaultPool = reinterpret_cast<CUmemoryPool>(0x78);
inline const auto kContext = reinterpret_cast<CUcontext>(0x55);
inline const auto kExec = reinterpret_cast<CUgraphExec>(0x33);
inline const auto kGraph = reinterpret_cast<CUgraph>(0x34);
inline constexpr uint64_t kGraphBytes = 8 * kMib;

inline CUresult Alloc(CUdeviceptr* address, size_t bytes) {
  std::unique_lock lock(books.mutex);
  const CUdeviceptr again = std::exchange(books.given_again, 0);
  *address = again != 0 ? again : books.next += 512;
  books.linear[*address] = bytes;
  const auto next = std::exchange(books.once_allocated, nullptr);
  lock.unlock();
  if (next) next(*address);
  return CUDA_SUCCESS;
}
inline CUresult Free(CUdeviceptr address) {
  const std::lock_guard lock(books.mutex);
  return books.linear.erase(address) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
inline CUresult PoolAlloc(CUdeviceptr* address, size_t bytes, CUmemoryPool, CUstream) {
  const std::lock_guard lock(books.mutex);
  const CUdeviceptr again = std::exchange(books.given_again, 0);
  *address = again != 0 ? again : books.next += 512;
  books.pooled[*address] = bytes;
  books.pool_used += bytes;
  while (books.pool_reserved < books.pool_used) books.pool_reserved += books.pool_step;
  return CUDA_SUCCESS;
}
inline CUresult PoolAllocHere(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return PoolAlloc(address, bytes, kPool, stream);
}
inline CUresult FreeInBooks(CUdeviceptr address) {
  const std::lock_guard lock(books.mutex);
  const auto found = books.pooled.find(address);
  if (found == books.pooled.end())
    return books.linear.erase(address) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  books.pool_used -= found->second;
  books.pooled.erase(found);
  return CUDA_SUCCESS;
}
inline CUresult PoolFree(CUdeviceptr address, CUstream) {
  const bool refuses = std::exchange(books.refuses_frees, false);
  if (const auto next = std::exchange(books.once_freeing, nullptr)) next();
  const CUresult result = refuses ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : FreeInBooks(address);
  if (const auto next = std::exchange(books.once_freed, nullptr)) next();
  return result;
}
inline CUresult PoolTrim(CUmemoryPool, size_t) {
  const std::lock_guard lock(books.mutex);
  books.pool_reserved = (books.pool_used + books.pool_step - 1) / books.pool_step * books.pool_step;
  return CUDA_SUCCESS;
}
inline CUresult PoolCreate(CUmemoryPool* pool, const CUmemPoolProps*) {
  *pool = kPool;
  books.pool_ended = false;
  return CUDA_SUCCESS;
}
inline CUresult PoolDestroy(CUmemoryPool) {
  if (const auto next = std::exchange(books.once_destroying, nullptr)) next();
  books.pool_ended = true;
  return CUDA_SUCCESS;
}
// The current one: when that has ended it is the device's own.
inline CUresult NamePool(CUmemoryPool* pool, CUmemLocation*, CUmemAllocationType) {
  *pool = books.pool_ended ? kDefaultPool : kPool;
  books.pool_named = true;
  return CUDA_SUCCESS;
}
inline CUresult PoolAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const std::lock_guard lock(books.mutex);
  if (pool == kDefaultPool) return *static_cast<cuuint64_t*>(value) = 0, CUDA_SUCCESS;
  if (books.pool_ended) books.asked_when_ended = true;
  *static_cast<cuuint64_t*>(value) =
      attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? books.pool_reserved : books.pool_used;
  return CUDA_SUCCESS;
}
inline CUresult Create(CUmemGenericAllocationHandle* made, size_t bytes, const CUmemAllocationProp*,
                       unsigned long long) {
  const std::lock_guard lock(books.mutex);
  *made = books.next += 512;
  books.physical[*made] = bytes;
  return CUDA_SUCCESS;
}

// A device and one context, primary. The guards are put once.
inline void OpenBooks() {
  Driver& driver = DriverToFill();
  driver.cuDeviceGetCount = [](int* count) { return *count = 1, CUDA_SUCCESS; };
  driver.cuDeviceGetUuid = [](CUuuid* uuid, CUdevice) { return *uuid = {"GPU of the test"}, CUDA_SUCCESS; };
  driver.cuCtxGetCurrent = [](CUcontext* context) { return *context = kContext, CUDA_SUCCESS; };
  driver.cuCtxGetDevice = [](CUdevice* device) { return *device = 0, CUDA_SUCCESS; };
  driver.cuGraphGetNodes = [](CUgraph, CUgraphNode* nodes, size_t* count) {
    if (nodes != nullptr) nodes[0] = reinterpret_cast<CUgraphNode>(1);
    return *count = 1, CUDA_SUCCESS;
  };
  driver.cuGraphNodeGetType = [](CUgraphNode, CUgraphNodeType* type) {
    return *type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_SUCCESS;
  };
  driver.cuGraphMemAllocNodeGetParams = [](CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
    return params->bytesize = kGraphBytes, CUDA_SUCCESS;
  };
  driver.cuMemAlloc_v2 = &Alloc;
  driver.cuMemAllocManaged = [](CUdeviceptr* address, size_t bytes, unsigned) {
    return Alloc(address, bytes);
  };
  driver.cuMemFree_v2 = &Free;
  driver.cuMemAllocAsync = &PoolAllocHere;
  driver.cuMemAllocFromPoolAsync = &PoolAlloc;
  driver.cuMemFreeAsync = &PoolFree;
  driver.cuMemPoolTrimTo = &PoolTrim;
  driver.cuMemPoolCreate = &PoolCreate;
  driver.cuMemPoolGetAttribute = &PoolAttribute;
  driver.cuMemPoolDestroy = &PoolDestroy;
  driver.cuMemGetMemPool = &NamePool;
  driver.cuDeviceGetMemPool = [](CUmemoryPool* pool, CUdevice) { return *pool = kPool, CUDA_SUCCESS; };
  driver.cuMemCreate = &Create;
  driver.cuMemRetainAllocationHandle = [](CUmemGenericAllocationHandle* made, void*) {
    return *made = 0x99, CUDA_SUCCESS;
  };
  driver.cuMemRelease = [](CUmemGenericAllocationHandle) { return CUDA_SUCCESS; };
  driver.cuMemMap = [](CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
    if (const auto next = std::exchange(books.once_mapped, nullptr)) next();
    return CUDA_SUCCESS;
  };
  driver.cuMemUnmap = [](CUdeviceptr, size_t) {
    if (const auto next = std::exchange(books.once_unmapped, nullptr)) next();
    return CUDA_SUCCESS;
  };
  driver.cuGraphLaunch = [](CUgraphExec, CUstream) {
    books.graph_reserved = std::max(books.graph_reserved, kGraphBytes);
    return ++books.launches, CUDA_SUCCESS;
  };
  driver.cuDeviceGetGraphMemAttribute = [](CUdevice, CUgraphMem_attribute attribute, void* value) {
    const bool reserved = attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
    return *static_cast<cuuint64_t*>(value) = reserved ? books.graph_reserved : 0, CUDA_SUCCESS;
  };
  driver.cuDeviceGraphMemTrim = [](CUdevice) { return books.graph_reserved = 0, CUDA_SUCCESS; };
  driver.cuMemGetInfo_v2 = [](size_t* free, size_t* total) {
    return *free = 90 * kMib, *total = 100 * kMib, CUDA_SUCCESS;
  };
  AccountMemory(driver);
}

class AccountingTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    static const bool opened = (OpenBooks(), true);
    ASSERT_TRUE(opened);
  }
  AccountingTest()
      : page_(static_cast<AccountPage*>(
            mmap(nullptr, sizeof(AccountPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    page_->Open(3);
    TheAccounting().Attach(page_, 3);
  }
  uint64_t Held() const { return page_->OnDevice(3, 0); }

  AccountPage* page_;  // stays: what one test leaves to be counted is the next one's no more
};

}  // namespace causeway::host
