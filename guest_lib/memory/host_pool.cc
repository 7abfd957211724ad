// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/memory/host_pool.h"

#include <map>
#include <mutex>
#include <vector>

#include "guest_lib/addresses/private_host.h"
#include "guest_lib/addresses/region_memory.h"
#include "guest_lib/host_register/pinned_reach.h"
#include "guest_lib/managed/pager.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/protocol/admit.h"

namespace causeway::guest {
namespace {

struct Freed {
  CUdeviceptr address;
  CUevent event;  // where the stream was
};

// A node, or -1 for memory of no node in particular.
using Node = int;

struct HostPools {
  Mutex<Lock::kHostPools> mutex;
  std::map<CUmemoryPool, Node> pools;
  std::map<Node, CUmemoryPool> defaults;
  std::map<Node, CUmemoryPool> current;                                   // what was set for one
  std::map<CUdeviceptr, CUmemoryPool> live;                               // allocations
  std::map<std::pair<CUmemoryPool, CUdevice>, CUmemAccess_flags> access;  // as the program has set it
  std::vector<Freed> freed;
  std::multimap<size_t, CUdeviceptr> idle;  // by bytes
  uint64_t idle_bytes = 0;
};
auto& all = *new HostPools;  // never destroyed

// Blocks that were freed over TCP and that the device reaches. They wait for the next allocation of their size, because the host waits for
// the device when it ends a registration, which a free must not. Those for which there is no room here are freed nevertheless.
constexpr uint64_t kMostIdle = 1u << 30;

CUresult Take(size_t bytes, void** memory) {
  Session& session = Session::Made();
  if (session.transport().shares_memory())
    return session.memory().Allocate(bytes, HostKind::kPooled, 0, memory);
  {
    const std::lock_guard lock(all.mutex);
    if (const auto idle = all.idle.find(bytes); idle != all.idle.end()) {
      *memory = reinterpret_cast<void*>(idle->second);
      all.idle.erase(idle);
      all.idle_bytes -= bytes;
      RenewPrivateHost(reinterpret_cast<uint64_t>(*memory), NextId());
      SetMigratingSyncMemops(reinterpret_cast<uint64_t>(*memory), false);
      return CUDA_SUCCESS;
    }
  }
  return AllocatePrivateHost(memory, bytes, nullptr, 0, HostKind::kPooled);
}

void Release(CUdeviceptr address) {
  Session& session = Session::Made();
  if (session.transport().shares_memory()) {
    session.memory().Free(reinterpret_cast<void*>(address));
    return;
  }
  HostAllocation block;
  if (FindPrivateHost(address, &block) && IsPrivateHostReached(address)) {
    const std::lock_guard lock(all.mutex);
    if (all.idle_bytes + block.bytes <= kMostIdle) {
      all.idle.emplace(block.bytes, address);
      all.idle_bytes += block.bytes;
      return;
    }
  }
  FreePinned(address);
}

bool TakeLive(CUdeviceptr address) {
  const std::lock_guard lock(all.mutex);
  return all.live.erase(address) != 0;
}

// Which of the host's places it is; none of them is the current thread's own.
CUresult NodeOf(const CUmemLocation& location, Node* node) {
  if (location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) return CUDA_ERROR_NOT_SUPPORTED;
  *node = location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ? location.id : -1;
  const bool is_one = location.type == CU_MEM_LOCATION_TYPE_HOST || *node >= 0;
  return is_one ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool IsDefault(CUmemoryPool pool) {
  const auto at = all.pools.find(pool);
  if (at == all.pools.end()) return false;
  const auto found = all.defaults.find(at->second);
  return found != all.defaults.end() && found->second == pool;
}

// What is refused, and handles that are none.
CUresult CheckStream(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (const CUresult result = cuStreamIsCapturing(stream, &status)) return result;
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

bool ReclaimFreedToHostPools() {
  if (AnyCapture()) return false;  // whose errors would say nothing of the streams
  // One thread looks at a time, and the others wait for what it finds: they would see nothing to look at, and refuse memory
  // that it is about to give back.
  static auto& looking = *new Mutex<Lock::kDefaultHostPools>;  // never destroyed
  std::vector<CUdeviceptr> done;
  {
    const std::lock_guard one(looking);
    std::vector<Freed> looked, kept;
    {
      const std::lock_guard lock(all.mutex);
      looked.swap(all.freed);
    }
    for (const Freed& freed : looked) {
      if (cuEventQuery(freed.event) == CUDA_ERROR_NOT_READY) {
        kept.push_back(freed);
        continue;
      }
      cuEventDestroy_v2(freed.event);
      done.push_back(freed.address);
    }
    if (Session::Made().transport().shares_memory()) {
      for (const CUdeviceptr address : done) Release(address);
    }
    const std::lock_guard lock(all.mutex);
    all.freed.insert(all.freed.end(), kept.begin(), kept.end());
  }
  // Without the lock: it may send messages.
  if (!Session::Made().transport().shares_memory()) {
    for (const CUdeviceptr address : done) Release(address);
  }
  return !done.empty();
}

namespace {
[[gnu::constructor]] void SetHostPoolHook() {
  hooks.reclaim_freed = ReclaimFreedToHostPools;
}
}  // namespace

bool IsOnHost(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

// The program could not read what the driver's own pool on the host gives. In its place stands a pool of the
// device, from which nothing is ever taken.
CUresult CreateHostPool(CUmemoryPool* pool, CUmemPoolProps properties) {
  Node node = -1;
  if (NodeOf(properties.location, &node) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  if (properties.allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  // NVIDIA's library shares pools of a node between processes, but not pools of the host as a whole.
  const bool is_shared = properties.handleTypes != CU_MEM_HANDLE_TYPE_NONE;
  if (is_shared && properties.location.type == CU_MEM_LOCATION_TYPE_HOST) return CUDA_ERROR_INVALID_VALUE;
  const Object* context = CurrentContextObject();
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = context != nullptr ? ContextOf(context).device : 0;
  if (const CUresult wrong = Admit(properties)) return wrong;
  if (is_shared) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult result = Wait<Op::cuMemPoolCreate>(pool, &properties)) return result;
  const std::lock_guard lock(all.mutex);
  all.pools[*pool] = node;
  return CUDA_SUCCESS;
}

CUresult DestroyHostPool(CUmemoryPool pool) {
  Node node = -1;
  {
    const std::lock_guard lock(all.mutex);
    if (IsDefault(pool)) return CUDA_ERROR_INVALID_VALUE;
    const auto found = all.pools.find(pool);
    if (found == all.pools.end()) return CUDA_ERROR_INVALID_VALUE;
    node = found->second;
    all.pools.erase(found);  // before its handle can be another's
    const auto current = all.current.find(node);
    if (current != all.current.end() && current->second == pool) all.current.erase(current);
    std::erase_if(all.access, [pool](const auto& set) { return set.first.first == pool; });
  }
  const CUresult result = Wait<Op::cuMemPoolDestroy>(pool);
  if (result == CUDA_SUCCESS) {
    ReclaimFreedToHostPools();
    return result;
  }
  const std::lock_guard lock(all.mutex);
  all.pools[pool] = node;
  return result;
}

CUresult DefaultHostPool(CUmemoryPool* pool, const CUmemLocation& location) {
  static auto& making = *new Mutex<Lock::kDefaultHostPools>;  // one for each place; never destroyed
  Node node = -1;
  if (const CUresult result = NodeOf(location, &node)) return result;
  const std::lock_guard one(making);
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.defaults.find(node);
    if (found != all.defaults.end()) {
      *pool = found->second;
      return CUDA_SUCCESS;
    }
  }
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = location;
  CUmemoryPool made = nullptr;
  const RelaxedCaptures relaxed;  // natively there is one from the beginning
  if (const CUresult result = CreateHostPool(&made, properties)) return result;
  const std::lock_guard lock(all.mutex);
  *pool = all.defaults[node] = made;
  return CUDA_SUCCESS;
}

CUresult CurrentHostPool(CUmemoryPool* pool, const CUmemLocation& location) {
  Node node = -1;
  if (const CUresult result = NodeOf(location, &node)) return result;
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.current.find(node);
    if (found != all.current.end()) {
      *pool = found->second;
      return CUDA_SUCCESS;
    }
  }
  return DefaultHostPool(pool, location);
}

CUresult SetCurrentHostPool(const CUmemLocation& location, CUmemoryPool pool) {
  Node node = -1;
  if (const CUresult result = NodeOf(location, &node)) return result;
  const std::lock_guard lock(all.mutex);
  const auto found = all.pools.find(pool);
  if (found == all.pools.end() || found->second != node) return CUDA_ERROR_INVALID_VALUE;
  all.current[node] = pool;
  return CUDA_SUCCESS;
}

bool IsHostPool(CUmemoryPool pool) {
  const std::lock_guard lock(all.mutex);
  return all.pools.contains(pool);
}

void NoteHostPoolAccess(CUmemoryPool pool, std::span<const CUmemAccessDesc> accesses) {
  const std::lock_guard lock(all.mutex);
  for (const CUmemAccessDesc& each : accesses) {
    if (each.location.type == CU_MEM_LOCATION_TYPE_DEVICE) all.access[{pool, each.location.id}] = each.flags;
  }
}

CUmemAccess_flags HostPoolAccess(CUmemoryPool pool, CUdevice device) {
  const std::lock_guard lock(all.mutex);
  const auto found = all.access.find({pool, device});
  return found != all.access.end() ? found->second : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

CUresult AllocateFromHostPool(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = CheckStream(stream)) return result;
  if (bytes == 0) {  // unlike cuMemAlloc, no error
    *address = 0;
    return CUDA_SUCCESS;
  }
  ReclaimFreedToHostPools();
  void* memory = nullptr;
  const CUresult result = Take(bytes, &memory);
  if (result != CUDA_SUCCESS) return result;
  *address = reinterpret_cast<CUdeviceptr>(memory);
  const std::lock_guard lock(all.mutex);
  all.live[*address] = pool;
  return CUDA_SUCCESS;
}

MaybeResult FreeToHostPool(CUdeviceptr address, CUstream stream) {
  if (HostPoolOf(address) == nullptr) return {};
  CUevent event = nullptr;
  if (const CUresult result = CheckStream(stream)) return result;
  if (const CUresult result = cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)) return result;
  CUresult result = cuEventRecord(event, stream);
  if (result == CUDA_SUCCESS && !TakeLive(address)) result = CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS) {
    cuEventDestroy_v2(event);
    return result;
  }
  {
    const std::lock_guard lock(all.mutex);
    all.freed.push_back({address, event});
  }
  ReclaimFreedToHostPools();
  return CUDA_SUCCESS;
}

MaybeResult FreeToHostPoolNow(CUdeviceptr address) {
  if (HostPoolOf(address) == nullptr) return {};
  const CUresult result = DrainDevice();
  if (result == CUDA_SUCCESS && TakeLive(address)) Release(address);
  return result;
}

CUmemoryPool HostPoolOf(CUdeviceptr address) {
  const std::lock_guard lock(all.mutex);
  const auto found = all.live.find(address);
  return found != all.live.end() ? found->second : nullptr;
}

}  // namespace causeway::guest
