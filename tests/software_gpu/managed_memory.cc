// SPDX-License-Identifier: Apache-2.0
// Hints about managed memory. It lives in host memory that kernels reach directly, so hints have nothing to
// move; they are checked and accepted.
#include <algorithm>
#include <cstring>

#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/memory.h"
#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {
namespace {

bool IsManagedRange(CUdeviceptr address, size_t bytes) {
  AllocationRef allocation = FindAllocation(address);
  return allocation != nullptr && allocation->kind == MemoryKind::kManaged && bytes != 0 &&
         IsAddressable(address, bytes);
}

CUresult Prefetch(const ContextRef& context, CUdeviceptr address, size_t bytes, CUstream handle) {
  if (FindStream(context, handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return IsManagedRange(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult Advise(CUdeviceptr address, size_t bytes, CUmem_advise advice) {
  bool known = advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  return known && IsManagedRange(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult GetRangeAttribute(void* data, size_t bytes, CUmem_range_attribute attribute) {
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      if (bytes != sizeof(int)) return CUDA_ERROR_INVALID_VALUE;
      std::memset(data, 0, bytes);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
      if (bytes == 0 || bytes % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
      auto* locations = static_cast<int*>(data);
      std::fill_n(locations, bytes / sizeof(int), static_cast<int>(CU_DEVICE_INVALID));
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (dstDevice != CU_DEVICE_CPU && !IsDevice(dstDevice)) return CUDA_ERROR_INVALID_DEVICE;
    return Prefetch(context, devPtr, count, hStream);
  });
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
                               CUstream hStream) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE && !IsDevice(location.id))
      return CUDA_ERROR_INVALID_DEVICE;
    return Prefetch(context, devPtr, count, hStream);
  });
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (device != CU_DEVICE_CPU && !IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
    return Advise(devPtr, count, advice);
  });
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE && !IsDevice(location.id))
      return CUDA_ERROR_INVALID_DEVICE;
    return Advise(devPtr, count, advice);
  });
}

CUresult cuMemRangeGetAttribute(void* data, size_t dataSize, CUmem_range_attribute attribute,
                                CUdeviceptr devPtr, size_t count) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (data == nullptr || !IsManagedRange(devPtr, count)) return CUDA_ERROR_INVALID_VALUE;
    return GetRangeAttribute(data, dataSize, attribute);
  });
}

CUresult cuMemRangeGetAttributes(void** data, size_t* dataSizes, CUmem_range_attribute* attributes,
                                 size_t numAttributes, CUdeviceptr devPtr, size_t count) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    bool arrays = data != nullptr && dataSizes != nullptr && attributes != nullptr && numAttributes != 0;
    if (!arrays || !IsManagedRange(devPtr, count)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < numAttributes; ++i) {
      CUresult result = GetRangeAttribute(data[i], dataSizes[i], attributes[i]);
      if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
