// SPDX-License-Identifier: Apache-2.0
// What a pointer is: answered from what this process allocated, asked of the host only for what it did not.
#include <cstring>

#include "guest_lib/memory.h"
#include "guest_lib/region_memory.h"
#include "guest_lib/remote.h"

namespace causeway::guest {
namespace {

// Everything the attributes say about one pointer.
struct Pointer {
  CUmemorytype type = static_cast<CUmemorytype>(0);
  CUcontext context = nullptr;
  int device = 0;
  uint64_t id = 0;
  uint64_t start = 0, bytes = 0;
  CUdeviceptr device_address = 0;
  void* host_address = nullptr;
  bool from_pool = false;
};

bool Describe(CUdeviceptr address, Pointer* pointer) {
  DeviceAllocation allocation;
  if (FindAllocation(address, &allocation)) {
    pointer->type = CU_MEMORYTYPE_DEVICE;
    pointer->context = reinterpret_cast<CUcontext>(allocation.context);
    pointer->id = allocation.id;
    pointer->start = allocation.address;
    pointer->bytes = allocation.bytes;
    pointer->device_address = address;
    pointer->from_pool = allocation.from_pool;
    if (allocation.context != nullptr) pointer->device = ContextOf(allocation.context).device;
    return true;
  }
  if (Session::Get()->memory().Find(address, &pointer->start, &pointer->bytes)) {
    pointer->type = CU_MEMORYTYPE_HOST;
    pointer->context = CurrentContext();
    pointer->id = pointer->start;
    pointer->device_address = address;
    pointer->host_address = reinterpret_cast<void*>(address);
    const Object* current = CurrentContextObject();
    pointer->device = current != nullptr ? ContextOf(current).device : 0;
    return true;
  }
  return false;
}

template <class T>
CUresult Store(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

// Sizes by attribute: facts of the driver's interface, measured.
CUresult Answer(void* data, CUpointer_attribute attribute, const Pointer& pointer) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return pointer.from_pool ? Store(data, CUcontext{}) : Store(data, pointer.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Store(data, static_cast<uint32_t>(pointer.type));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return Store(data, pointer.device_address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (pointer.host_address == nullptr) return CUDA_ERROR_INVALID_VALUE;
      return Store(data, pointer.host_address);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return Store(data, uint32_t{0});
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return Store(data, pointer.id);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return Store(data, pointer.device);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return Store(data, pointer.start);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return Store(data, pointer.bytes);
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return Store(data, uint32_t{0});
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return Store(data, uint32_t{1});
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return Store(data, static_cast<uint64_t>(0));
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return Store(data, static_cast<uint32_t>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return Store(data, static_cast<void*>(nullptr));
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// What the plural form stores for a pointer that is not ours.
void StoreForeign(void* data, CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      Store(data, uint32_t{0});
      return;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      Store(data, int32_t{-2});
      return;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      Store(data, uint32_t{0});
      return;
    default:
      Store(data, uint64_t{0});
  }
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway::guest;

extern "C" {

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Pointer pointer;
  if (!Describe(address, &pointer)) return CUDA_ERROR_INVALID_VALUE;
  return Answer(data, attribute, pointer);
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Pointer pointer;
  const bool known = Describe(address, &pointer);
  for (unsigned i = 0; i < count; ++i) {
    if (!known || Answer(data[i], attributes[i], pointer) != CUDA_SUCCESS)
      StoreForeign(data[i], attributes[i]);
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
