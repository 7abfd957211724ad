// SPDX-License-Identifier: Apache-2.0
// Hints about managed memory. It lives in host memory that kernels reach directly, so hints have nothing to
// move; they are checked and remembered by pages, for programs that ask.
#include <algorithm>
#include <mutex>

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

constexpr uint64_t kHintPage = 4096;
std::mutex hints_mutex;

// From here on another entry says what holds for the pages up to the next one, until now the same.
void SplitAt(std::map<uint64_t, MemoryHints>& hints, uint64_t page) {
  const auto next = hints.upper_bound(page);
  if (next == hints.begin()) {
    hints.emplace(page, MemoryHints{});
  } else if (std::prev(next)->first != page) {
    hints.emplace_hint(next, page, std::prev(next)->second);
  }
}

// Calls `visit` with the hints of all pages of the range, once for each run of pages with the same: a range
// may have terabytes.
template <class Visit>
void ForEachRun(CUdeviceptr address, size_t bytes, Visit visit) {
  AllocationRef allocation = FindAllocation(address);
  if (allocation == nullptr) return;  // freed since the caller looked
  const std::lock_guard lock(hints_mutex);
  const uint64_t first = address / kHintPage, end = (address + bytes - 1) / kHintPage + 1;
  SplitAt(allocation->hints, first);
  SplitAt(allocation->hints, end);
  for (auto run = allocation->hints.find(first); run->first != end; ++run) visit(run->second);
}

// Of the forms that know devices and the CPU only.
CUmemLocation OfDevice(CUdevice device) {
  CUmemLocation location{};
  location.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

CUresult Check(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
    return IsDevice(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  const bool host = location.type == CU_MEM_LOCATION_TYPE_HOST ||
                    location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                    location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  return host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

MemoryHints::Place PlaceOf(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) return {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  const bool whole_host = location.type == CU_MEM_LOCATION_TYPE_HOST;
  return {location.type, whole_host ? static_cast<int>(CU_DEVICE_CPU) : location.id};
}

// Of the forms that know devices and the CPU only.
int Number(const MemoryHints::Place& place) {
  return place.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ? static_cast<int>(CU_DEVICE_CPU) : place.id;
}

CUresult Prefetch(const ContextRef& context, CUdeviceptr address, size_t bytes, const CUmemLocation& location,
                  CUstream handle) {
  if (CUresult result = Check(location); result != CUDA_SUCCESS) return result;
  if (FindStream(context, handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!IsManagedRange(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  ForEachRun(address, bytes, [&](MemoryHints& hints) { hints.prefetched = PlaceOf(location); });
  return CUDA_SUCCESS;
}

void Apply(MemoryHints& hints, CUmem_advise advice, const CUmemLocation& location) {
  const MemoryHints::Place place = PlaceOf(location);
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      hints.read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
      break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      hints.preferred = place;
      break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      hints.preferred = {};
      break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
      hints.accessed_by.insert(place.id);
      break;
    default:
      hints.accessed_by.erase(place.id);
  }
}

CUresult Advise(CUdeviceptr address, size_t bytes, CUmem_advise advice, const CUmemLocation& location) {
  bool known = advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (!known || !IsManagedRange(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const bool names = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
                     advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (CUresult result = Check(location); names && result != CUDA_SUCCESS) return result;
  const bool accesses = names && advice != CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
  if (accesses && PlaceOf(location).type == CU_MEM_LOCATION_TYPE_HOST_NUMA) return CUDA_ERROR_INVALID_VALUE;
  ForEachRun(address, bytes, [&](MemoryHints& hints) { Apply(hints, advice, location); });
  return CUDA_SUCCESS;
}

// What holds for every page of the range.
MemoryHints Common(CUdeviceptr address, size_t bytes) {
  MemoryHints common;
  bool first = true;
  ForEachRun(address, bytes, [&](const MemoryHints& hints) {
    if (first) common = hints;
    first = false;
    common.read_mostly = common.read_mostly && hints.read_mostly;
    if (common.preferred != hints.preferred) common.preferred = {};
    if (common.prefetched != hints.prefetched) common.prefetched = {};
    std::erase_if(common.accessed_by, [&](int id) { return !hints.accessed_by.contains(id); });
  });
  return common;
}

CUresult GetRangeAttribute(void* data, size_t bytes, CUmem_range_attribute attribute,
                           const MemoryHints& hints) {
  auto* answer = static_cast<int*>(data);
  if (data == nullptr || bytes == 0 || bytes % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) {
    std::fill_n(answer, bytes / sizeof(int), static_cast<int>(CU_DEVICE_INVALID));
    std::copy_n(hints.accessed_by.begin(), std::min(bytes / sizeof(int), hints.accessed_by.size()), answer);
    return CUDA_SUCCESS;
  }
  if (bytes != sizeof(int)) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      *answer = hints.read_mostly ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      *answer = Number(hints.preferred);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      *answer = hints.preferred.id;
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      *answer = hints.preferred.type;
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      *answer = Number(hints.prefetched);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      *answer = hints.prefetched.id;
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      *answer = hints.prefetched.type;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    return Prefetch(context, devPtr, count, OfDevice(dstDevice), hStream);
  });
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
                               CUstream hStream) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return Prefetch(context, devPtr, count, location, hStream);
  });
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    return Advise(devPtr, count, advice, OfDevice(device));
  });
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    const bool is_place = location.type == CU_MEM_LOCATION_TYPE_DEVICE ||
                          location.type == CU_MEM_LOCATION_TYPE_HOST ||
                          location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                          location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    if (!is_place) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = Advise(devPtr, count, advice, location);
    return result == CUDA_ERROR_INVALID_DEVICE ? CUDA_ERROR_INVALID_VALUE : result;
  });
}

CUresult cuMemRangeGetAttribute(void* data, size_t dataSize, CUmem_range_attribute attribute,
                                CUdeviceptr devPtr, size_t count) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (data == nullptr || !IsManagedRange(devPtr, count)) return CUDA_ERROR_INVALID_VALUE;
    return GetRangeAttribute(data, dataSize, attribute, Common(devPtr, count));
  });
}

CUresult cuMemRangeGetAttributes(void** data, size_t* dataSizes, CUmem_range_attribute* attributes,
                                 size_t numAttributes, CUdeviceptr devPtr, size_t count) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    bool arrays = data != nullptr && dataSizes != nullptr && attributes != nullptr && numAttributes != 0;
    if (!arrays || !IsManagedRange(devPtr, count)) return CUDA_ERROR_INVALID_VALUE;
    const MemoryHints common = Common(devPtr, count);
    for (size_t i = 0; i < numAttributes; ++i) {
      CUresult result = GetRangeAttribute(data[i], dataSizes[i], attributes[i], common);
      if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
