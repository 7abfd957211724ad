// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/host_pool.h"

#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "guest_lib/memory.h"
#include "guest_lib/region_memory.h"
#include "guest_lib/remote.h"

namespace causeway::guest {
namespace {

struct Freed {
  CUdeviceptr address;
  CUevent event;  // where the stream was
};

struct HostPools {
  std::mutex mutex;
  std::set<CUmemoryPool> pools;
  std::map<CUdeviceptr, CUmemoryPool> live;  // allocations
  std::vector<Freed> freed;
};
auto& all = *new HostPools;  // never destroyed

void Release(CUdeviceptr address) {
  Session::Made().memory().Free(reinterpret_cast<void*>(address));
}

// Gives back what no stream needs any more.
void Reclaim() {
  std::vector<Freed> looked;
  {
    const std::lock_guard lock(all.mutex);
    looked.swap(all.freed);
  }
  std::vector<Freed> kept;
  for (const Freed& freed : looked) {
    if (cuEventQuery(freed.event) == CUDA_ERROR_NOT_READY) {
      kept.push_back(freed);
      continue;
    }
    cuEventDestroy(freed.event);
    Release(freed.address);
  }
  const std::lock_guard lock(all.mutex);
  all.freed.insert(all.freed.end(), kept.begin(), kept.end());
}

bool TakeLive(CUdeviceptr address) {
  const std::lock_guard lock(all.mutex);
  return all.live.erase(address) != 0;
}

// What is refused, and handles that are none.
CUresult CheckStream(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (const CUresult result = cuStreamIsCapturing(stream, &status)) return result;
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

bool IsOnHost(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

void RememberHostPool(CUmemoryPool pool) {
  const std::lock_guard lock(all.mutex);
  all.pools.insert(pool);
}

void ForgetHostPool(CUmemoryPool pool) {
  const std::lock_guard lock(all.mutex);
  all.pools.erase(pool);
}

bool IsHostPool(CUmemoryPool pool) {
  const std::lock_guard lock(all.mutex);
  return all.pools.contains(pool);
}

CUresult AllocateFromHostPool(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = CheckStream(stream)) return result;
  if (bytes == 0) {  // unlike cuMemAlloc, no error
    *address = 0;
    return CUDA_SUCCESS;
  }
  Reclaim();
  void* memory = nullptr;
  const CUresult result = Session::Made().memory().Allocate(bytes, HostKind::kPooled, 0, &memory);
  if (result != CUDA_SUCCESS) return result;
  *address = reinterpret_cast<CUdeviceptr>(memory);
  const std::lock_guard lock(all.mutex);
  all.live[*address] = pool;
  return CUDA_SUCCESS;
}

bool FreeToHostPool(CUdeviceptr address, CUstream stream, CUresult* result) {
  if (HostPoolOf(address) == nullptr) return false;
  *result = CheckStream(stream);
  CUevent event = nullptr;
  if (*result == CUDA_SUCCESS) *result = cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (*result != CUDA_SUCCESS) return true;
  *result = cuEventRecord(event, stream);
  if (*result == CUDA_SUCCESS && !TakeLive(address)) *result = CUDA_ERROR_INVALID_VALUE;
  if (*result != CUDA_SUCCESS) {
    cuEventDestroy(event);
    return true;
  }
  {
    const std::lock_guard lock(all.mutex);
    all.freed.push_back({address, event});
  }
  Reclaim();
  return true;
}

bool FreeToHostPoolNow(CUdeviceptr address, CUresult* result) {
  if (HostPoolOf(address) == nullptr) return false;
  *result = DrainDevice();
  if (*result == CUDA_SUCCESS && TakeLive(address)) Release(address);
  return true;
}

CUmemoryPool HostPoolOf(CUdeviceptr address) {
  const std::lock_guard lock(all.mutex);
  const auto found = all.live.find(address);
  return found != all.live.end() ? found->second : nullptr;
}

}  // namespace causeway::guest
