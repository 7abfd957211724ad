// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: reservations inside the device windows, what is mapped, shareable handles.
#include "guest_lib/address_windows.h"
#include "guest_lib/memory.h"
#include "guest_lib/remote.h"
#include "guest_lib/shared_descriptor.h"

using namespace causeway;
using namespace causeway::guest;

namespace {

// A handle that may be one that the program has already, with one more reference then.
CUresult ReceiveAllocation(PendingCall& call, Allocation made, CUmemGenericAllocationHandle* handle) {
  Remote remote;
  const CUresult result = call.writer().ok() ? call.Finish() : call.writer().error();
  if (result != CUDA_SUCCESS) {
    remote.Forget(made);
    return result;
  }
  const auto settled = remote.Settle(made, call.reader().Get<WireHandle>());
  if (settled == nullptr) return CUDA_ERROR_UNKNOWN;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(settled);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

// An address is only a wish. One outside of the windows might be taken in this process, so it is not passed
// on.
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  const bool inside = IsDeviceAddress(wish) && IsDeviceAddress(wish + bytes);
  const CUresult result =
      Wait<Op::cuMemAddressReserve>(address, bytes, alignment, inside ? wish : CUdeviceptr{0}, flags);
  if (result != CUDA_SUCCESS || IsDeviceAddress(*address)) return result;
  cuMemAddressFree(*address, bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  const CUresult result = Wait<Op::cuMemMap>(address, bytes, offset, handle, flags);
  if (result == CUDA_SUCCESS) RememberMapping(address, bytes);
  return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  if (const CUresult result = InitialisedOrError()) return result;
  const auto taken = TakeAllocations(address, bytes);
  const CUresult result = Wait<Op::cuMemUnmap>(address, bytes);
  if (result != CUDA_SUCCESS) ReturnAllocations(taken);
  return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (const CUresult result = InitialisedOrError()) return result;
  DropClosedDescriptors();
  return Wait<Op::cuMemRelease>(handle);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  PendingCall call(Op::cuMemRetainAllocationHandle);
  Remote remote;
  const auto made = remote.Make<Allocation>(call.writer());
  call.writer().Put(
      ShareAddressBody{reinterpret_cast<uint64_t>(address), remote.ToWire(made, call.writer())});
  return ReceiveAllocation(call, made, handle);
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (shareable == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Object* object = Find(reinterpret_cast<Allocation>(handle));
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  DropClosedDescriptors();
  SharedToken token{};
  {
    PendingCall call(Op::cuMemExportToShareableHandle);
    call.writer().Put(ShareableBody{WireOf(object), static_cast<uint32_t>(type), 0, flags, {}});
    const CUresult result = call.writer().ok() ? call.Finish() : call.writer().error();
    if (result != CUDA_SUCCESS) return result;
    token = call.reader().Get<SharedToken>();
  }
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return MakeSharedDescriptor(token, false, static_cast<int*>(shareable));
  }
  FillBlob(shareable, token);
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ShareableBody body{0, static_cast<uint32_t>(type), 0, 0, {}};
  if (!ReadShareable(shareable, type, &body.token)) return CUDA_ERROR_INVALID_VALUE;
  PendingCall call(Op::cuMemImportFromShareableHandle);
  Remote remote;
  const auto made = remote.Make<Allocation>(call.writer());
  body.object = remote.ToWire(made, call.writer());
  call.writer().Put(body);
  return ReceiveAllocation(call, made, handle);
}

}  // extern "C"
