// SPDX-License-Identifier: Apache-2.0
// Allocation and registration calls. Frees wait for the whole device, as NVIDIA's driver does.
#include "tests/software_gpu/memory.h"

#include <cstring>
#include <optional>

#include "tests/software_gpu/config.h"
#include "tests/software_gpu/context.h"
#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {
namespace {

constexpr size_t kPitchBytes = 512;

CUresult AllocateHost(const ContextRef& context, void** pp, size_t bytes, unsigned flags) {
  constexpr unsigned kKnown =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (pp == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
  *pp = nullptr;
  if (bytes == 0) return CUDA_SUCCESS;
  AllocationRef allocation = AllocateHostMemory(context, bytes, MemoryKind::kHost, flags);
  if (allocation == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *pp = allocation->address();
  return CUDA_SUCCESS;
}

AllocationRef FindHostAllocation(const void* address) {
  AllocationRef allocation = FindAllocation(reinterpret_cast<uintptr_t>(address));
  return allocation != nullptr && (allocation->IsHost() || allocation->kind == MemoryKind::kManaged)
             ? allocation
             : nullptr;
}

CUresult FreeDevice(CUdeviceptr address) {
  if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
  if (address == 0) return CUDA_SUCCESS;
  AllocationRef allocation = FindAllocation(address);
  if (allocation == nullptr || allocation->base != address || allocation->IsHost() || allocation->internal ||
      allocation->kind == MemoryKind::kMapped) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SynchronizeDevice();
  ReleaseMemory(allocation);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (dptr == nullptr || bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
    AllocationRef allocation = AllocateDeviceMemory(context, bytesize, MemoryKind::kDevice);
    if (allocation == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *dptr = allocation->base;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    bool element_ok = ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16;
    if (dptr == nullptr || pPitch == nullptr || WidthInBytes == 0 || Height == 0 || !element_ok) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
    if (WidthInBytes > GetConfig().device_memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    size_t pitch = (WidthInBytes + kPitchBytes - 1) / kPitchBytes * kPitchBytes;
    if (Height > GetConfig().device_memory_bytes / pitch) return CUDA_ERROR_OUT_OF_MEMORY;
    AllocationRef allocation = AllocateDeviceMemory(context, pitch * Height, MemoryKind::kDevice);
    if (allocation == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *dptr = allocation->base;
    *pPitch = pitch;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    bool flags_ok = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST;
    if (dptr == nullptr || bytesize == 0 || !flags_ok) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
    AllocationRef allocation = AllocateHostMemory(context, bytesize, MemoryKind::kManaged, flags);
    if (allocation == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *dptr = allocation->base;
    return CUDA_SUCCESS;
  });
}

// Memory knows its context: none has to be current.
CUresult cuMemFree_v2(CUdeviceptr dptr) {
  const AllocationRef allocation = FindAllocation(dptr);
  if (allocation == nullptr) return Initialised(__func__, [&] { return FreeDevice(dptr); });
  const ContextRef own = CurrentContext() == nullptr ? allocation->context.lock() : nullptr;
  std::optional<ScopedCurrentContext> scope;
  if (own != nullptr) scope.emplace(own);
  return InContext(__func__, [&](const ContextRef&) { return FreeDevice(dptr); });
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *total = GetConfig().device_memory_bytes;
    *free = *total - DeviceMemoryInUse(context->device);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    AllocationRef allocation = FindAllocation(dptr);
    if (allocation == nullptr) return CUDA_ERROR_NOT_FOUND;
    if (pbase != nullptr) *pbase = allocation->base;
    if (psize != nullptr) *psize = allocation->bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) {
  return InContext(__func__,
                   [&](const ContextRef& context) { return AllocateHost(context, pp, bytesize, Flags); });
}

CUresult cuMemAllocHost_v2(void** pp, size_t bytesize) {
  return InContext(__func__, [&](const ContextRef& context) {
    return AllocateHost(context, pp, bytesize, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  });
}

CUresult cuMemFreeHost(void* p) {
  if (p == nullptr) return OnDevice(__func__, [] { return CUDA_SUCCESS; });
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
    AllocationRef allocation = FindHostAllocation(p);
    if (allocation == nullptr || allocation->address() != p || allocation->kind != MemoryKind::kHost) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    SynchronizeDevice();
    ReleaseMemory(allocation);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* pdptr, void* p, unsigned int Flags) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (pdptr == nullptr || Flags != 0 || FindHostAllocation(p) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pdptr = reinterpret_cast<uintptr_t>(p);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostGetFlags(unsigned int* pFlags, void* p) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    AllocationRef allocation = FindHostAllocation(p);
    if (pFlags == nullptr || allocation == nullptr ||
        (allocation->kind != MemoryKind::kHost && allocation->kind != MemoryKind::kRegistered)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // With unified addressing all host memory is mapped.
    *pFlags = allocation->flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostRegister_v2(void* p, size_t bytesize, unsigned int Flags) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    if (p == nullptr || bytesize == 0 || (Flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
    // As cuMemHostAlloc, it does not wait; what was measured to wait is a registration with its end.
    return RegisterHostMemory(context, p, bytesize, Flags);
  });
}

CUresult cuMemHostUnregister(void* p) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
    AllocationRef allocation = FindHostAllocation(p);
    if (allocation == nullptr) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (allocation->kind != MemoryKind::kRegistered || allocation->address() != p)
      return CUDA_ERROR_INVALID_VALUE;
    SynchronizeDevice();
    ReleaseMemory(allocation);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
