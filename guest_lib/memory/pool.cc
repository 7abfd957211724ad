// SPDX-License-Identifier: Apache-2.0
// Memory pools that processes share, and which pools lie on the host.
#include "guest_lib/addresses/address_windows.h"
#include "guest_lib/memory/freed_memory.h"
#include "guest_lib/memory/host_pool.h"
#include "guest_lib/memory/memory.h"
#include "guest_lib/memory/shared_descriptor.h"
#include "guest_lib/stream/capture_rule.h"
#include "guest_lib/stream/giving_back.h"
#include "guest_lib/stream/remote.h"

using namespace causeway;
using namespace causeway::guest;

namespace {

// Pools of managed memory are refused by the host.
bool IsHostPlace(const CUmemLocation* location, CUmemAllocationType type) {
  return location != nullptr && type == CU_MEM_ALLOCATION_TYPE_PINNED && IsOnHost(*location);
}

CUresult CheckType(CUmemAllocationType type) {
  if (const CUresult result = InitialisedOrError()) return result;
  const bool known = type == CU_MEM_ALLOCATION_TYPE_PINNED || type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Of the node of the calling thread there is no pool, whatever the type.
CUresult CheckPoolOf(const CUmemLocation* location, CUmemAllocationType type) {
  if (const CUresult result = InitialisedOrError()) return result;
  const bool here = location != nullptr && location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  return here ? CUDA_ERROR_NOT_SUPPORTED : CheckType(type);
}

// In the driver's order (580.159). A device's own pool is the driver's to judge.
CUresult CheckAccess(const CUmemAccessDesc& access) {
  const bool is_device = access.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (!is_device || access.flags == CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_NOT_SUPPORTED;
  const auto devices = static_cast<int>(Session::Made().devices().size());
  if (access.location.id < 0 || access.location.id >= devices) return CUDA_ERROR_INVALID_DEVICE;
  const bool known =
      access.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

extern "C" {

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (pool == nullptr || properties == nullptr)
    return AnswerBesideCaptures(CUDA_ERROR_INVALID_VALUE, CaptureRule::kUnsafe);
  if (!IsOnHost(properties->location)) return Wait<Op::cuMemPoolCreate>(pool, properties);
  return AnswerOfRow<Op::cuMemPoolCreate>(CreateHostPool(pool, *properties), pool, properties);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (IsHostPool(pool)) return CUDA_ERROR_INVALID_VALUE;  // which the driver takes for one of the device
  NoteCurrentPoolChange();
  return Wait<Op::cuDeviceSetMemPool>(device, pool);
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  if (const CUresult result = CheckPoolOf(location, type)) return result;
  return pool != nullptr && IsHostPlace(location, type)
             ? DefaultHostPool(pool, *location)
             : Wait<Op::cuMemGetDefaultMemPool>(pool, location, type);
}

CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  if (const CUresult result = CheckPoolOf(location, type)) return result;
  return pool != nullptr && IsHostPlace(location, type) ? CurrentHostPool(pool, *location)
                                                        : Wait<Op::cuMemGetMemPool>(pool, location, type);
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  if (const CUresult result = CheckPoolOf(location, type))
    return AnswerBesideCaptures(result, CaptureRule::kUnsafe);
  if (IsHostPlace(location, type)) return SetCurrentHostPool(*location, pool);
  // No pool is of managed memory, since such pools cannot be made.
  if (IsHostPool(pool) || type == CU_MEM_ALLOCATION_TYPE_MANAGED)
    return AnswerBesideCaptures(CUDA_ERROR_INVALID_VALUE, CaptureRule::kUnsafe);
  NoteCurrentPoolChange();
  return Wait<Op::cuMemSetMemPool>(location, type, pool);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const CUresult result = Wait<Op::cuMemPoolSetAttribute>(pool, attribute, value);
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) NotePoolsKeepLess();
  return result;
}

// Unknown values never reach the host. The driver would have judged the place first, so that is done here; and before everything else
// whether a capture forbids the call.
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* accesses, size_t count) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (const CUresult refused = CaptureRefusal(CaptureRule::kUnsafe)) return refused;
  const bool is_list = Find(pool) != nullptr && accesses != nullptr && count <= kMaxElements;
  for (size_t i = 0; is_list && i < count; ++i) {
    if (const CUresult refused = CheckAccess(accesses[i])) return refused;
  }
  // In its place stands a pool of a device, which never loses it.
  if (is_list && count != 0 && IsHostPool(pool)) {
    NoteHostPoolAccess(pool, {accesses, count});
    return CUDA_SUCCESS;
  }
  return Wait<Op::cuMemPoolSetAccess>(pool, accesses, count);
}

// For a pool on the host the driver's answer is about the device's pool that stands in its place, so it is replaced.
CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* location) {
  const CUresult result = Wait<Op::cuMemPoolGetAccess>(flags, pool, location);
  if (result != CUDA_SUCCESS || !IsHostPool(pool)) return result;
  *flags = location->type == CU_MEM_LOCATION_TYPE_DEVICE ? HostPoolAccess(pool, location->id)
                                                         : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  if (const CUresult result = InitialisedOrError()) return result;
  DropClosedDescriptors();
  NoteCurrentPoolChange();  // if it was that
  return IsHostPool(pool) ? DestroyHostPool(pool) : Wait<Op::cuMemPoolDestroy>(pool);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (IsHostPool(pool)) ReclaimFreedToHostPools();
  return Wait<Op::cuMemPoolTrimTo>(pool, keep);
}

CUresult cuMemPoolExportToShareableHandle(void* shareable, CUmemoryPool pool, CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* object = Find(pool);
  if (shareable == nullptr || object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return ExportShareable(Op::cuMemPoolExportToShareableHandle, *object, type, flags, shareable);
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* shareable,
                                            CUmemAllocationHandleType type, unsigned long long flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ShareableBody body{0, static_cast<uint32_t>(type), 0, flags, {}};
  if (!ReadShareable(shareable, type, &body.token)) return CUDA_ERROR_INVALID_VALUE;
  PendingCall call(Op::cuMemPoolImportFromShareableHandle);
  Remote remote;
  const auto made = remote.Make<CUmemoryPool>(call.writer());
  body.object = remote.ToWire(made, call.writer());
  call.writer().Put(body);
  const CUresult result = call.Finish();
  if (result != CUDA_SUCCESS) {
    remote.Forget(made);
    return result;
  }
  *pool = remote.Settle(made, call.reader().Get<WireHandle>());
  return *pool != nullptr ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr address) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  NoteSharedDeviceMemory();
  SharedToken token{};
  if (const CUresult result = AskHost(Op::cuMemPoolExportPointer, ShareAddressBody{address, 0}, &token))
    return result;
  FillBlob(data, token);
  NoteShared(address);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr* address, CUmemoryPool pool, CUmemPoolPtrExportData* data) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* object = Find(pool);
  SharedToken token;
  if (address == nullptr || data == nullptr || object == nullptr || !ReadBlob(data, &token))
    return CUDA_ERROR_INVALID_VALUE;
  NoteSharedDeviceMemory();
  OpenedMemory opened{};
  if (const CUresult result =
          AskHost(Op::cuMemPoolImportPointer, OpenSharedBody{token, WireOf(object), 0, 0}, &opened))
    return result;
  if (!AdmitDeviceMemory(opened.address, opened.bytes)) {
    Wait<Op::cuMemFree_v2>(opened.address);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  RememberAllocation(opened.address, opened.bytes, true);
  *address = opened.address;
  return CUDA_SUCCESS;
}

}  // extern "C"
