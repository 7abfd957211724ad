// SPDX-License-Identifier: Apache-2.0
// Device and pinned memory: allocation, and what this process knows of its pointers.
#include "guest_lib/memory.h"

#include <map>
#include <shared_mutex>

#include "guest_lib/address_windows.h"
#include "guest_lib/region_memory.h"
#include "guest_lib/remote.h"

namespace causeway::guest {
namespace {

std::shared_mutex allocations_mutex;
auto& allocations = *new std::map<uint64_t, DeviceAllocation>;  // by address; never destroyed

// Forgets an allocation before it is freed: afterwards its address may be another thread's already.
class Forgotten {
 public:
  explicit Forgotten(CUdeviceptr address) {
    const std::unique_lock lock(allocations_mutex);
    node_ = allocations.extract(address);
  }
  bool known() const { return !node_.empty(); }
  // The call failed: the allocation is still there.
  void Restore() {
    const std::unique_lock lock(allocations_mutex);
    if (known()) allocations.insert(std::move(node_));
  }

 private:
  std::map<uint64_t, DeviceAllocation>::node_type node_;
};

CUresult DrainDevice() {
  PendingCall call(Op::kDrainDevice);
  return call.writer().ok() ? call.Finish() : call.writer().error();
}

CUresult NeedContext() {
  if (const CUresult result = InitialisedOrError()) return result;
  return CurrentContextObject() != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

void RememberAllocation(CUdeviceptr address, uint64_t bytes, bool from_pool) {
  const std::unique_lock lock(allocations_mutex);
  allocations[address] = {address, bytes, CurrentContextObject(), NextId(), from_pool};
}

std::vector<DeviceAllocation> TakeAllocations(CUdeviceptr address, uint64_t bytes) {
  const std::unique_lock lock(allocations_mutex);
  std::vector<DeviceAllocation> taken;
  const auto begin = allocations.lower_bound(address);
  auto end = begin;
  for (; end != allocations.end() && end->first - address < bytes; ++end) taken.push_back(end->second);
  allocations.erase(begin, end);
  return taken;
}

void ReturnAllocations(const std::vector<DeviceAllocation>& taken) {
  const std::unique_lock lock(allocations_mutex);
  for (const DeviceAllocation& allocation : taken) allocations.emplace(allocation.address, allocation);
}

bool FindAllocation(CUdeviceptr address, DeviceAllocation* allocation) {
  const std::shared_lock lock(allocations_mutex);
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return false;
  --found;
  if (address - found->first >= found->second.bytes) return false;
  *allocation = found->second;
  return true;
}

PointerKind KindOfPointer(uint64_t address) {
  if (Session::Get()->memory().InWindow(address)) return PointerKind::kPinned;
  return IsDeviceAddress(address) ? PointerKind::kDevice : PointerKind::kPageable;
}

}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  if (const CUresult result = NeedContext()) return result;
  const CUresult result = Wait<Op::cuMemAlloc_v2>(address, bytes);
  if (result == CUDA_SUCCESS) RememberAllocation(*address, bytes, false);
  return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                            unsigned int element) {
  if (const CUresult result = NeedContext()) return result;
  const CUresult result = Wait<Op::cuMemAllocPitch_v2>(address, pitch, width, height, element);
  if (result == CUDA_SUCCESS) RememberAllocation(*address, *pitch * height, false);
  return result;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  if (const CUresult result = NeedContext()) return result;
  Forgotten allocation(address);
  const CUresult result = Wait<Op::cuMemFree_v2>(address);
  if (result != CUDA_SUCCESS) allocation.Restore();
  return result;
}

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  if (const CUresult result = NeedContext()) return result;
  const CUresult result = Wait<Op::cuMemAllocAsync>(address, bytes, stream);
  if (result == CUDA_SUCCESS) RememberAllocation(*address, bytes, true);
  return result;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  if (const CUresult result = NeedContext()) return result;
  const CUresult result = Wait<Op::cuMemAllocFromPoolAsync>(address, bytes, pool, stream);
  if (result == CUDA_SUCCESS) RememberAllocation(*address, bytes, true);
  return result;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  if (const CUresult result = NeedContext()) return result;
  Forgotten allocation(address);
  if (!allocation.known()) return address != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  const CUresult result = Post<Op::cuMemFreeAsync>(address, stream);
  if (result != CUDA_SUCCESS) allocation.Restore();
  return result;
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  if (const CUresult result = NeedContext()) return result;
  return Wait<Op::cuMemGetInfo_v2>(free, total);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  if (const CUresult result = NeedContext()) return result;
  DeviceAllocation allocation;
  uint64_t start = 0, length = 0;
  if (FindAllocation(address, &allocation)) {
    start = allocation.address;
    length = allocation.bytes;
  } else if (!Session::Get()->memory().Find(address, &start, &length)) {
    return Wait<Op::cuMemGetAddressRange_v2>(base, bytes, address);
  }
  if (base != nullptr) *base = start;
  if (bytes != nullptr) *bytes = length;
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned int flags) {
  if (const CUresult result = NeedContext()) return result;
  constexpr unsigned kKnown =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (address == nullptr || bytes == 0 || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  Session& session = *Session::Get();
  if (const CUresult sticky = session.sticky()) return sticky;
  if (const CUresult unsafe = CheckUnsafeCall()) return unsafe;
  if (!session.transport().shares_memory()) return AllocatePrivateHost(address, bytes);
  const CUresult result = session.memory().Allocate(bytes, address);
  if (result == CUDA_SUCCESS) session.memory().SetFlags(*address, flags);
  return result;
}

CUresult cuMemAllocHost_v2(void** address, size_t bytes) {
  return cuMemHostAlloc(address, bytes, 0);
}

CUresult cuMemFreeHost(void* address) {
  if (const CUresult result = NeedContext()) return result;
  Session& session = *Session::Get();
  if (const CUresult sticky = session.sticky()) return sticky;
  if (address == nullptr) return CUDA_SUCCESS;  // as driver 580 answers
  if (!session.transport().shares_memory()) return FreePrivateHost(address);
  uint64_t start = 0, bytes = 0;
  if (!session.memory().Find(reinterpret_cast<uint64_t>(address), &start, &bytes) ||
      start != reinterpret_cast<uint64_t>(address)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Natively this waits for the whole device: nothing on it may still use the memory.
  if (const CUresult result = DrainDevice()) return result;
  return session.memory().Free(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Nothing can be registered yet, so nothing is.
CUresult cuMemHostUnregister(void* address) {
  if (const CUresult result = NeedContext()) return result;
  return address != nullptr ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* host, unsigned int flags) {
  if (const CUresult result = NeedContext()) return result;
  if (device == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  uint64_t start, bytes;
  if (!Session::Get()->memory().Find(reinterpret_cast<uint64_t>(host), &start, &bytes))
    return CUDA_ERROR_INVALID_VALUE;
  *device = reinterpret_cast<CUdeviceptr>(host);  // one address space
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int* flags, void* host) {
  if (const CUresult result = NeedContext()) return result;
  uint64_t start, bytes;
  if (flags == nullptr ||
      !Session::Get()->memory().Find(reinterpret_cast<uint64_t>(host), &start, &bytes, flags)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *flags |= CU_MEMHOSTALLOC_DEVICEMAP;  // with unified addressing all of it is mapped
  return CUDA_SUCCESS;
}

}  // extern "C"
