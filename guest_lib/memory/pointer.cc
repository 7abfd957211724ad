// SPDX-License-Identifier: Apache-2.0
// What a pointer is: answered from what this process allocated, asked of the host only for what it did not.
#include <cstring>

#include "guest_lib/addresses/address_windows.h"
#include "guest_lib/memory/host_pool.h"
#include "guest_lib/memory/memory.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::guest {
namespace {

// Everything that the attributes say about one pointer.
struct Pointer {
  CUmemorytype type = static_cast<CUmemorytype>(0);
  CUcontext context = nullptr;
  int device = 0;
  uint64_t id = 0;
  uint64_t start = 0, bytes = 0;
  uint64_t mapping_start = 0, mapping_bytes = 0;
  CUdeviceptr device_address = 0;
  void* host_address = nullptr;
  bool from_pool = false;
  Object* pool = nullptr;
  bool managed = false;
  bool sync_memops = false;
};

// What the driver would have mapped for it: whole pages of registered memory, its own large ones of pinned.
void DescribeMapping(const HostAllocation& host, Pointer* pointer) {
  constexpr uint64_t kDriverPage = 2u << 20;
  pointer->mapping_start = host.address;
  pointer->mapping_bytes = host.bytes;
  if (host.kind == HostKind::kRegistered) {
    pointer->mapping_start = PageFloor(host.address);
    pointer->mapping_bytes = PageCeiling(host.address + host.bytes) - pointer->mapping_start;
  } else if (host.kind == HostKind::kPinned) {
    pointer->mapping_bytes = (host.bytes + kDriverPage - 1) / kDriverPage * kDriverPage;
  }
}

bool Describe(CUdeviceptr address, Pointer* pointer) {
  DeviceAllocation device;
  if (FindAllocation(address, &device)) {
    pointer->type = CU_MEMORYTYPE_DEVICE;
    pointer->context = reinterpret_cast<CUcontext>(device.context);
    pointer->id = device.id;
    pointer->start = device.address;
    pointer->bytes = device.bytes;
    pointer->mapping_start = device.address;
    pointer->mapping_bytes = device.bytes;
    pointer->device_address = address;
    pointer->from_pool = device.from_pool;
    pointer->pool = device.pool;
    pointer->sync_memops = device.sync_memops;
    if (device.context != nullptr) pointer->device = ContextOf(device.context).device;
    return true;
  }
  HostAllocation host;
  if (!FindHost(address, &host)) return false;
  pointer->managed = host.kind == HostKind::kManaged;
  pointer->type = pointer->managed ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  pointer->context = reinterpret_cast<CUcontext>(host.context);
  pointer->id = host.id;
  pointer->start = host.address;
  pointer->bytes = host.bytes;
  DescribeMapping(host, pointer);
  pointer->device_address = host.device_address == 0 ? 0 : host.device_address + (address - host.address);
  pointer->host_address = reinterpret_cast<void*>(address);
  pointer->sync_memops = host.sync_memops;
  pointer->from_pool = host.kind == HostKind::kPooled;
  if (pointer->from_pool) pointer->pool = reinterpret_cast<Object*>(HostPoolOf(host.address));
  if (host.context != nullptr) pointer->device = ContextOf(host.context).device;
  return true;
}

// The pool of an allocation: the one that was named, or what the device hands out by default.
CUmemoryPool PoolOf(const Pointer& pointer) {
  if (!pointer.from_pool) return nullptr;
  if (pointer.pool != nullptr) return reinterpret_cast<CUmemoryPool>(pointer.pool);
  CUmemoryPool pool = nullptr;
  return Wait<Op::cuDeviceGetMemPool>(&pool, pointer.device) == CUDA_SUCCESS ? pool : nullptr;
}

template <class T>
CUresult Store(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

// Of a list the driver refuses one that it does not know, whatever it would answer to others.
bool IsAttribute(CUpointer_attribute attribute) {
  return attribute >= CU_POINTER_ATTRIBUTE_CONTEXT &&
         attribute <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE &&
         attribute != CU_POINTER_ATTRIBUTE_P2P_TOKENS;
}

// Sizes by attribute: facts of the driver's interface, measured.
CUresult Answer(void* data, CUpointer_attribute attribute, const Pointer& pointer) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return pointer.from_pool ? Store(data, CUcontext{}) : Store(data, pointer.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Store(data, static_cast<uint32_t>(pointer.type));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      if (pointer.device_address == 0) return CUDA_ERROR_INVALID_VALUE;
      return Store(data, pointer.device_address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (pointer.host_address == nullptr) return CUDA_ERROR_INVALID_VALUE;
      return Store(data, pointer.host_address);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return Store(data, uint32_t{pointer.sync_memops ? 1u : 0u});
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return Store(data, uint32_t{pointer.managed ? 1u : 0u});
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return Store(data, uint32_t{0});
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return Store(data, pointer.id);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return Store(data, pointer.device);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return Store(data, pointer.start);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return Store(data, pointer.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return Store(data, pointer.mapping_start);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return Store(data, pointer.mapping_bytes);
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return Store(data, uint32_t{0});
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return Store(data, uint32_t{1});
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return Store(data, static_cast<uint64_t>(0));
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return Store(data, static_cast<uint32_t>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return Store(data, PoolOf(pointer));
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return CUDA_ERROR_NOT_SUPPORTED;  // of use inside the host only
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Device memory that the host alone knows: variables of modules, mapped memory. Handles in its answer are the
// host's, of which only null-ness means something here.
CUresult AskHost(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (!IsDeviceAddress(address)) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS) return CUDA_ERROR_NOT_SUPPORTED;
  alignas(uint64_t) std::byte value[kMaxAttributeBytes] = {};
  const CUresult result = Wait<Op::cuPointerGetAttribute>(static_cast<void*>(value), attribute, address);
  if (result != CUDA_SUCCESS) return result;
  uint64_t handle = 0;
  std::memcpy(&handle, value, sizeof handle);
  if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT) return Store(data, handle != 0 ? CurrentContext() : nullptr);
  if (attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) return Store(data, static_cast<void*>(nullptr));
  std::memcpy(data, value, AttributeBytes(attribute));
  return CUDA_SUCCESS;
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

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Pointer pointer;
  if (!Describe(address, &pointer)) return AskHost(data, attribute, address);
  return Answer(data, attribute, pointer);
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!std::all_of(attributes, attributes + count, IsAttribute)) return CUDA_ERROR_INVALID_VALUE;
  Pointer pointer;
  const bool known = Describe(address, &pointer);
  for (unsigned i = 0; i < count; ++i) {
    if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result =
        known ? Answer(data[i], attributes[i], pointer) : AskHost(data[i], attributes[i], address);
    if (result != CUDA_SUCCESS) StoreForeign(data[i], attributes[i]);
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
