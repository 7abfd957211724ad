// SPDX-License-Identifier: Apache-2.0
// Memory that the driver takes and gives back on its own: what pools keep beyond their allocations, and what
// the launches of graphs need. The driver says how much it is; under a limit the bytes that a call may add
// are reserved first, and what it did add is settled against them.
#include <algorithm>
#include <optional>

#include "host_backend/worker/accounting/accounting.h"
#include "host_backend/worker/driver/capture.h"
#include "host_backend/worker/driver/host_nodes.h"

namespace causeway::host {
namespace {

constexpr uint64_t kGranularity = 2 << 20;  // of device memory that the driver takes

uint64_t RoundUp(uint64_t bytes) {
  return (std::min(bytes, uint64_t{1} << 62) + kGranularity - 1) / kGranularity * kGranularity;
}

// To ask is what captures forbid a program, and breaks them.
uint64_t PoolBytes(CUmemoryPool pool, CUmemPool_attribute attribute) {
  std::optional<RelaxedMode> relaxed;
  if (Captures::Any()) relaxed.emplace();
  cuuint64_t bytes = 0;
  return TheDriver().cuMemPoolGetAttribute(pool, attribute, &bytes) == CUDA_SUCCESS ? bytes : 0;
}

uint64_t GraphBytes(CUdevice device, CUgraphMem_attribute attribute) {
  std::optional<RelaxedMode> relaxed;
  if (Captures::Any()) relaxed.emplace();
  cuuint64_t bytes = 0;
  return TheDriver().cuDeviceGetGraphMemAttribute(device, attribute, &bytes) == CUDA_SUCCESS ? bytes : 0;
}

// What graphs allocate on each device, those inside it included.
std::vector<std::pair<int, uint64_t>> AllocatedBy(CUgraph graph) {
  const Driver& driver = TheDriver();
  std::map<int, uint64_t> bytes;
  std::vector<CUgraph> open{graph};
  for (size_t looked = 0; !open.empty() && looked < 1000; ++looked) {
    const CUgraph here = open.back();
    open.pop_back();
    std::vector<CUgraphNode> nodes;
    if (NodesOf(here, &nodes) != CUDA_SUCCESS) continue;
    for (CUgraphNode node : nodes) {
      CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
      CUDA_MEM_ALLOC_NODE_PARAMS params{};
      CUgraph child = nullptr;
      driver.cuGraphNodeGetType(node, &type);
      if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
          driver.cuGraphMemAllocNodeGetParams(node, &params) == CUDA_SUCCESS) {
        bytes[params.poolProps.location.id] += RoundUp(params.bytesize);
      } else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
                 driver.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS && child != nullptr) {
        open.push_back(child);
      }
    }
  }
  return {bytes.begin(), bytes.end()};
}

}  // namespace

// `advance` is counted already, in expectation of this.
void Accounting::Settle(Reservoir& reservoir, uint64_t held, uint64_t* advance) {
  const int place = Place(reservoir.device);
  if (held < reservoir.counted) {
    page_->Return(cell_, reservoir.kind, place, reservoir.counted - held);
  } else if (held > reservoir.counted) {
    const uint64_t more = held - reservoir.counted;
    const uint64_t from_advance = advance != nullptr ? std::min(more, *advance) : 0;
    if (advance != nullptr) *advance -= from_advance;
    page_->Add(cell_, reservoir.kind, place, more - from_advance);
  }
  reservoir.counted = held;
}

void Accounting::RefreshPool(CUmemoryPool pool, Reservoir& reservoir, uint64_t* advance) {
  Settle(reservoir, PoolBytes(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), advance);
}

void Accounting::RefreshGraphs(int device, uint64_t* advance) {
  const auto found = graphs_.find(device);
  if (found == graphs_.end()) return;
  Settle(found->second, GraphBytes(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), advance);
}

void Accounting::RefreshLocked() {
  for (auto& [pool, reservoir] : pools_) RefreshPool(pool, reservoir, nullptr);
  for (auto& [device, reservoir] : graphs_) RefreshGraphs(device, nullptr);
}

void Accounting::Refresh() {
  const std::lock_guard lock(reservoirs_mutex_);
  RefreshLocked();
}

// What pools and graphs keep for later is given back before a call is refused, as drivers do on a full GPU.
void Accounting::Trim(int device) {
  const RelaxedMode relaxed;
  for (auto& [pool, reservoir] : pools_) {
    if (reservoir.device == device) Uncounted::TrimPool(pool);
  }
  if (graphs_.count(device) != 0) Uncounted::TrimGraphs(device);
  for (auto& [exec, memory] : execs_) memory.backed = false;
  RefreshLocked();
}

bool Accounting::TakeOrTrim(MemoryKind kind, int device, uint64_t bytes) {
  Trim(device);
  if (TakeBytes(kind, device, bytes)) return true;
  Refuse(device, bytes);
  return false;
}

void Accounting::KnowPool(CUmemoryPool pool, MemoryKind kind, int device) {
  const std::lock_guard lock(reservoirs_mutex_);
  // An earlier one with that pointer has ended unseen, with all that lay in it.
  std::erase_if(pooled_, [pool](const auto& entry) { return entry.second->pool == pool; });
  pools_.emplace(pool, Reservoir{kind, device, 0});
}

CUresult Accounting::KnowGivenPool(const CUmemoryPool* pool, MemoryKind kind, int device,
                                   const std::function<CUresult()>& give) {
  const std::lock_guard lock(reservoirs_mutex_);
  const CUresult result = give();
  if (result == CUDA_SUCCESS) pools_.emplace(*pool, Reservoir{kind, device, 0});
  return result;
}

CUresult Accounting::EndPool(CUmemoryPool pool, const std::function<CUresult()>& destroy) {
  const std::lock_guard lock(reservoirs_mutex_);
  const CUresult result = destroy();
  const auto found = pools_.find(pool);
  if (result != CUDA_SUCCESS || found == pools_.end()) return result;
  const Reservoir ended = found->second;
  pools_.erase(found);
  // What still lives in it keeps its memory until it is freed. A free that has been called but has not said how it
  // went may still fail, so what it frees counts too. If the driver has freed that already, its bytes can lie in
  // another entry as well, and for that moment the sum is more than the pool had: each counts in full, so that none
  // of those that live is left with too little when the free drops its own charge.
  uint64_t kept = 0;
  std::erase_if(pooled_, [&](const auto& entry) {
    const auto& [address, memory] = entry;
    if (memory->pool != pool) return false;
    memory->outlives =
        std::make_shared<const Charge>(page_, cell_, ended.kind, Place(ended.device), memory->bytes);
    kept += memory->bytes;
    Hold(ChargeSpace::kAddress, address, memory->outlives, false);
    return true;
  });
  if (kept <= ended.counted) {
    page_->Return(cell_, ended.kind, Place(ended.device), ended.counted - kept);
  } else {
    page_->Add(cell_, ended.kind, Place(ended.device), kept - ended.counted);
  }
  return result;
}

// The entry stays during the driver's call, which may fail after the pool has ended. It is known by its identity
// afterwards: the driver may have given the address to another thread, whose entry and charges stay.
CUresult Accounting::FreeFromPool(CUdeviceptr address, const std::function<CUresult()>& free) {
  if (!any_pooled_.load()) return free();
  std::shared_ptr<Pooled> known;
  {
    const std::lock_guard lock(reservoirs_mutex_);
    const auto found = pooled_.find(address);
    if (found != pooled_.end()) known = found->second;
  }
  const CUresult result = free();
  if (result != CUDA_SUCCESS || known == nullptr) return result;
  const std::lock_guard lock(reservoirs_mutex_);
  const auto found = pooled_.find(address);
  if (found != pooled_.end() && found->second == known) {
    pooled_.erase(found);
  } else if (known->outlives != nullptr) {
    Drop(ChargeSpace::kAddress, address, std::exchange(known->outlives, nullptr));
  }
  return result;
}

// Null where the pool is another process's: its memory counts there.
Accounting::Reservoir* Accounting::FindPool(CUmemoryPool* pool, int device) {
  const bool current = *pool == nullptr;
  if (current && TheDriver().cuDeviceGetMemPool(pool, device) != CUDA_SUCCESS) return nullptr;
  const auto found = pools_.find(*pool);
  if (found != pools_.end()) return &found->second;
  CUmemoryPool standard = nullptr;
  if (TheDriver().cuDeviceGetDefaultMemPool(&standard, device) != CUDA_SUCCESS || standard != *pool)
    return nullptr;
  return &pools_.emplace(*pool, Reservoir{MemoryKind::kDevice, device, 0}).first->second;
}

CUresult Accounting::AllocateFromPool(CUmemoryPool pool, const CUdeviceptr* address, uint64_t bytes,
                                      const std::function<CUresult()>& allocate,
                                      const std::function<void()>& undo) {
  CUdevice device = 0;
  if (bytes == 0 || TheDriver().cuCtxGetDevice(&device) != CUDA_SUCCESS) return allocate();
  if (limit_bytes() == 0) {  // Refresh() counts it soon
    const uint32_t bit = uint32_t{1} << (device & 31);
    if ((pool_devices_.fetch_or(bit) & bit) == 0) {
      const std::lock_guard lock(reservoirs_mutex_);
      FindPool(&pool, device);
    }
    return allocate();
  }
  const std::lock_guard lock(reservoirs_mutex_);
  Reservoir* reservoir = FindPool(&pool, device);
  if (reservoir == nullptr) return allocate();
  RefreshPool(pool, *reservoir, nullptr);
  const uint64_t needed = PoolBytes(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) + RoundUp(bytes);
  uint64_t advance = needed > reservoir->counted ? needed - reservoir->counted : 0;
  const int place = Place(reservoir->device);
  if (advance != 0 && !TakeBytes(reservoir->kind, reservoir->device, advance) &&
      !TakeOrTrim(reservoir->kind, reservoir->device, advance)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult result = allocate();
  const uint64_t held = PoolBytes(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  // The pool may have grown by more than was asked of it.
  const uint64_t more = held > reservoir->counted + advance ? held - reservoir->counted - advance : 0;
  if (result == CUDA_SUCCESS && more != 0) {
    if (TakeBytes(reservoir->kind, reservoir->device, more)) {
      advance += more;
    } else {
      undo();
      page_->Return(cell_, reservoir->kind, place, advance);
      Trim(reservoir->device);
      Refuse(reservoir->device, more);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  RefreshPool(pool, *reservoir, &advance);
  page_->Return(cell_, reservoir->kind, place, advance);
  if (result == CUDA_SUCCESS) {
    pooled_[*address] = std::make_shared<Pooled>(Pooled{pool, bytes, nullptr});
    any_pooled_.store(true);
  }
  return result;
}

void Accounting::KnowGraph(CUgraphExec exec, CUgraph graph) {
  GraphMemory memory{AllocatedBy(graph)};
  if (memory.by_device.empty()) return;
  const std::lock_guard lock(reservoirs_mutex_);
  for (const auto& [device, bytes] : memory.by_device)
    graphs_.emplace(device, Reservoir{MemoryKind::kDevice, device, 0});
  execs_[exec] = std::move(memory);
  any_graphs_.store(true);
}

CUresult Accounting::EndGraph(CUgraphExec exec, const std::function<CUresult()>& destroy) {
  if (!any_graphs_.load()) return destroy();
  std::unique_lock lock(reservoirs_mutex_);
  auto known = execs_.extract(exec);
  lock.unlock();  // the driver may wait for a launch
  const CUresult result = destroy();
  lock.lock();
  if (result == CUDA_SUCCESS) {
    RefreshLocked();
  } else if (!known.empty()) {
    execs_.insert(std::move(known));
  }
  return result;
}

void Accounting::GraphsTrimmed() {
  const std::lock_guard lock(reservoirs_mutex_);
  for (auto& [exec, memory] : execs_) memory.backed = false;
  RefreshLocked();
}

CUresult Accounting::LaunchGraph(CUgraphExec exec, const std::function<CUresult()>& launch) {
  if (!any_graphs_.load() || limit_bytes() == 0) return launch();
  std::unique_lock lock(reservoirs_mutex_);
  const auto found = execs_.find(exec);
  if (found != execs_.end() && !found->second.backed) return LaunchLimited(found->second, launch);
  lock.unlock();
  return launch();
}

// The first launch takes what the graphs before have not left free.
CUresult Accounting::LaunchLimited(GraphMemory& memory, const std::function<CUresult()>& launch) {
  std::vector<uint64_t> advances;
  CUresult result = CUDA_SUCCESS;
  for (const auto& [device, bytes] : memory.by_device) {
    RefreshGraphs(device, nullptr);
    const uint64_t used = GraphBytes(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
    const uint64_t left = graphs_[device].counted > used ? graphs_[device].counted - used : 0;
    const uint64_t advance = bytes > left ? bytes - left : 0;
    if (!TakeBytes(MemoryKind::kDevice, device, advance) &&
        !TakeOrTrim(MemoryKind::kDevice, device, advance)) {
      result = CUDA_ERROR_OUT_OF_MEMORY;
      break;
    }
    advances.push_back(advance);
  }
  if (result == CUDA_SUCCESS) result = launch();
  memory.backed = result == CUDA_SUCCESS;
  for (size_t i = 0; i < advances.size(); ++i) {
    const int device = memory.by_device[i].first;
    RefreshGraphs(device, &advances[i]);
    page_->Return(cell_, MemoryKind::kDevice, Place(device), advances[i]);
  }
  return result;
}

}  // namespace causeway::host
