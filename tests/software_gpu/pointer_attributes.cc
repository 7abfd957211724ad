// SPDX-License-Identifier: Apache-2.0
// What can be asked about a pointer.
#include <cstring>
#include <utility>

#include "tests/software_gpu/memory.h"
#include "tests/software_gpu/mempool.h"

namespace causeway::software_gpu {
namespace {

// Bytes that the attribute's answer takes; 0 for unknown attributes.
size_t AttributeBytes(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return 8;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return 4;
    default:
      return 0;
  }
}

CUcontext OwnerHandle(const Allocation& allocation) {
  ContextRef context = allocation.context.lock();
  return context == nullptr || allocation.kind == MemoryKind::kPool ? nullptr : context->handle;
}

// Its beginning and bytes, as driver 580 has them for memory of the host.
std::pair<uint64_t, uint64_t> MappingOf(const Allocation& allocation) {
  constexpr uint64_t kPage = 4096, kOwnPage = 2u << 20;
  const uint64_t end = allocation.base + allocation.bytes;
  if (allocation.kind == MemoryKind::kRegistered) {
    const uint64_t begin = allocation.base / kPage * kPage;
    return {begin, (end + kPage - 1) / kPage * kPage - begin};
  }
  if (allocation.kind != MemoryKind::kHost) return {allocation.base, allocation.bytes};
  return {allocation.base, (allocation.bytes + kOwnPage - 1) / kOwnPage * kOwnPage};
}

// False when the allocation has no such property.
bool GetAttribute(const Allocation& allocation, uint64_t address, CUpointer_attribute attribute,
                  uint64_t* value) {
  bool host_visible = allocation.IsHost() || allocation.kind == MemoryKind::kManaged;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *value = reinterpret_cast<uintptr_t>(OwnerHandle(allocation));
      return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *value = allocation.IsHost() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *value = address;
      return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      *value = address;
      return host_visible;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      *value = allocation.id;
      return true;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *value = allocation.kind == MemoryKind::kManaged ? 1 : 0;
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *value = static_cast<unsigned>(allocation.device);
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *value = allocation.base;
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *value = allocation.bytes;
      return true;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      *value = MappingOf(allocation).first;
      return true;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      *value = MappingOf(allocation).second;
      return true;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *value = 1;
      return true;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      *value = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
      return true;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *value = allocation.pool == nullptr ? 0 : reinterpret_cast<uintptr_t>(allocation.pool->handle);
      return true;
    default:
      *value = 0;  // capabilities that this device lacks
      return true;
  }
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    size_t bytes = AttributeBytes(attribute);
    AllocationRef allocation = FindAllocation(ptr);
    uint64_t value = 0;
    if (data == nullptr || bytes == 0 || allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!GetAttribute(*allocation, ptr, attribute, &value)) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(data, &value, bytes);
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr ptr) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (numAttributes == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    AllocationRef allocation = FindAllocation(ptr);
    for (unsigned i = 0; i < numAttributes; ++i) {
      size_t bytes = AttributeBytes(attributes[i]);
      if (bytes == 0 || data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      uint64_t value = 0;
      bool foreign_ordinal = allocation == nullptr && attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
      if (foreign_ordinal) value = static_cast<uint64_t>(-2);  // "no device", as cuda.h documents
      if (allocation != nullptr && !GetAttribute(*allocation, ptr, attributes[i], &value)) value = 0;
      std::memcpy(data[i], &value, bytes);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    bool known =
        value != nullptr && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && FindAllocation(ptr) != nullptr;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

}  // extern "C"
