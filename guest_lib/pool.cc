// SPDX-License-Identifier: Apache-2.0
// Memory pools that processes share.
#include "guest_lib/memory.h"
#include "guest_lib/remote.h"
#include "guest_lib/shared_descriptor.h"

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  if (const CUresult result = InitialisedOrError()) return result;
  DropClosedDescriptors();
  return Wait<Op::cuMemPoolDestroy>(pool);
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
  PendingCall call(Op::cuMemPoolExportPointer);
  call.writer().Put(ShareAddressBody{address, 0});
  const CUresult result = call.writer().ok() ? call.Finish() : call.writer().error();
  if (result != CUDA_SUCCESS) return result;
  FillBlob(data, call.reader().Get<SharedToken>());
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr* address, CUmemoryPool pool, CUmemPoolPtrExportData* data) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* object = Find(pool);
  SharedToken token;
  if (address == nullptr || data == nullptr || object == nullptr || !ReadBlob(data, &token))
    return CUDA_ERROR_INVALID_VALUE;
  PendingCall call(Op::cuMemPoolImportPointer);
  call.writer().Put(OpenSharedBody{token, WireOf(object), 0, 0});
  const CUresult result = call.writer().ok() ? call.Finish() : call.writer().error();
  if (result != CUDA_SUCCESS) return result;
  const auto opened = call.reader().Get<OpenedMemory>();
  if (!call.reader().ok()) return CUDA_ERROR_UNKNOWN;
  RememberAllocation(opened.address, opened.bytes, true);
  *address = opened.address;
  return CUDA_SUCCESS;
}

}  // extern "C"
