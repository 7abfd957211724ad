// SPDX-License-Identifier: Apache-2.0
// Memory pools that processes share, and which pools lie on the host.
#include "guest_lib/address_windows.h"
#include "guest_lib/freed_memory.h"
#include "guest_lib/host_pool.h"
#include "guest_lib/log.h"
#include "guest_lib/memory.h"
#include "guest_lib/remote.h"
#include "guest_lib/shared_descriptor.h"

using namespace causeway;
using namespace causeway::guest;

namespace {

// The program could not read what the driver's own pool on the host gives. In its place stands a pool of the
// device, from which nothing is ever taken.
CUresult CreateHostPool(CUmemoryPool* pool, CUmemPoolProps properties) {
  if (!Session::Made().transport().shares_memory()) {
    Complain("pools of host memory need shared memory, which there is none of over TCP");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (properties.allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (properties.handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  const Object* context = CurrentContextObject();
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {context != nullptr ? ContextOf(context).device : 0}};
  const CUresult result = Wait<Op::cuMemPoolCreate>(pool, &properties);
  if (result == CUDA_SUCCESS) RememberHostPool(*pool);
  return result;
}

}  // namespace

extern "C" {

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (pool == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return IsOnHost(properties->location) ? CreateHostPool(pool, *properties)
                                        : Wait<Op::cuMemPoolCreate>(pool, properties);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  NoteCurrentPoolChange();
  return Wait<Op::cuDeviceSetMemPool>(device, pool);
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  NoteCurrentPoolChange();
  return Wait<Op::cuMemSetMemPool>(location, type, pool);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const CUresult result = Wait<Op::cuMemPoolSetAttribute>(pool, attribute, value);
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) NotePoolsKeepLess();
  return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  if (const CUresult result = InitialisedOrError()) return result;
  DropClosedDescriptors();
  NoteCurrentPoolChange();  // if it was that
  const bool on_host = IsHostPool(pool);
  if (on_host) ForgetHostPool(pool);  // before its handle can be another's
  const CUresult result = Wait<Op::cuMemPoolDestroy>(pool);
  if (result != CUDA_SUCCESS && on_host) RememberHostPool(pool);
  return result;
}

CUresult cuMemPoolExportToShareableHandle(void* shareable, CUmemoryPool pool, CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* object = Find(pool);
  if (shareable == nullptr || object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  DropClosedDescriptors();
  SharedToken token{};
  {
    PendingCall call(Op::cuMemPoolExportToShareableHandle);
    call.writer().Put(ShareableBody{WireOf(object), static_cast<uint32_t>(type), 0, flags, {}});
    const CUresult result = call.writer().ok() ? call.Finish() : call.writer().error();
    if (result != CUDA_SUCCESS) return result;
    token = call.reader().Get<SharedToken>();
  }
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return MakeSharedDescriptor(token, true, static_cast<int*>(shareable));
  }
  FillBlob(shareable, token);
  return CUDA_SUCCESS;
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
  const CUresult result = call.writer().ok() ? call.Finish() : call.writer().error();
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
  PendingCall call(Op::cuMemPoolExportPointer);
  call.writer().Put(ShareAddressBody{address, 0});
  const CUresult result = call.writer().ok() ? call.Finish() : call.writer().error();
  if (result != CUDA_SUCCESS) return result;
  FillBlob(data, call.reader().Get<SharedToken>());
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
  if (const CUresult result = OpenShared(Op::cuMemPoolImportPointer, {token, WireOf(object), 0, 0}, &opened))
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
