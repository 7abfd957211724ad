// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: reservations inside the device windows, what is mapped, shareable handles.
#include <atomic>

#include "guest_lib/addresses/address_windows.h"
#include "guest_lib/memory/memory.h"
#include "guest_lib/memory/shared_descriptor.h"
#include "guest_lib/stream/remote.h"

using namespace causeway;
using namespace causeway::guest;

namespace {

// A handle that may be one that the program has already, with one more reference then.
CUresult ReceiveAllocation(PendingCall& call, Allocation made, CUmemGenericAllocationHandle* handle) {
  Remote remote;
  const CUresult result = call.Finish();
  if (result != CUDA_SUCCESS) {
    remote.Forget(made);
    return result;
  }
  const auto settled = remote.Settle(made, call.reader().Get<WireHandle>());
  if (settled == nullptr) return CUDA_ERROR_UNKNOWN;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(settled);
  return CUDA_SUCCESS;
}

CUresult ReserveAt(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr wish,
                   unsigned long long flags) {
  const CUresult result = Wait<Op::cuMemAddressReserve>(address, bytes, alignment, wish, flags);
  if (result != CUDA_SUCCESS || IsDeviceAddress(*address, bytes)) return result;
  Wait<Op::cuMemAddressFree>(*address, bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// The driver's own choice leaves the windows once its first 300 GiB are taken, and PyTorch's expandable
// segments take more addresses than the GPU has memory for each stream. The upper window has room for 20 TiB;
// its upper end, which the driver's mappings reach last, is handed out downwards.
CUresult ReserveInUpperWindow(CUdeviceptr* address, size_t bytes, size_t alignment,
                              unsigned long long flags) {
  constexpr Window kUpper = kDeviceWindows[1];
  static std::atomic<uint64_t> next{kUpper.end};
  constexpr uint64_t kGranularity = 2 << 20;
  const uint64_t aligned = alignment > kGranularity ? alignment : kGranularity;
  if (bytes > kUpper.end - kUpper.begin || aligned > kUpper.end - kUpper.begin)
    return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t needed = (bytes + 2 * aligned - 1) / aligned * aligned;
  for (int tries = 0; tries < 8; ++tries) {
    uint64_t end = next.load();
    uint64_t top = 0;
    do {
      top =
          needed > end - kUpper.begin ? kUpper.end : end;  // at the bottom: what was above may be free again
      if (needed > top - kUpper.begin) return CUDA_ERROR_OUT_OF_MEMORY;
    } while (!next.compare_exchange_weak(end, top - needed));
    const uint64_t wish = (top - needed + aligned - 1) / aligned * aligned;
    const CUresult result = ReserveAt(address, bytes, alignment, wish, flags);
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Where memory is refused because a guest cannot have it: what the driver answers to the size is said first.
CUresult RefusedMemory(size_t bytes, const CUmemAllocationProp* properties) {
  size_t unit = 0;
  const CUresult asked =
      Wait<Op::cuMemGetAllocationGranularity>(&unit, properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  const bool wrong = asked == CUDA_SUCCESS && unit != 0 && (bytes == 0 || bytes % unit != 0);
  return wrong ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
}

// The answer to a null argument. A driver without multicast objects says so before it looks at any.
CUresult WrongForMulticast() {
  CUmulticastObjectProp prop{};
  prop.numDevices = 2;
  prop.size = 2u << 20;
  size_t bytes = 0;
  const CUresult result =
      Wait<Op::cuMulticastGetGranularity>(&bytes, &prop, CU_MULTICAST_GRANULARITY_MINIMUM);
  return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
}

}  // namespace

extern "C" {

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  const CUresult result = Wait<Op::cuMemCreate>(handle, bytes, properties, flags);
  return result == CUDA_ERROR_NOT_SUPPORTED ? RefusedMemory(bytes, properties) : result;
}

// An address is only a wish. One outside of the windows might be taken here: it is not passed on.
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const CUdeviceptr passed = IsDeviceAddress(wish, bytes) ? wish : CUdeviceptr{0};
  const CUresult result = ReserveAt(address, bytes, alignment, passed, flags);
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  return ReserveInUpperWindow(address, bytes, alignment, flags);
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
  return ExportShareable(Op::cuMemExportToShareableHandle, *object, type, flags, shareable);
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

CUresult cuMulticastCreate(CUmemGenericAllocationHandle* handle, const CUmulticastObjectProp* prop) {
  return handle != nullptr && prop != nullptr ? Wait<Op::cuMulticastCreate>(handle, prop)
                                              : WrongForMulticast();
}

CUresult cuMulticastGetGranularity(size_t* bytes, const CUmulticastObjectProp* prop,
                                   CUmulticastGranularity_flags option) {
  return bytes != nullptr && prop != nullptr ? Wait<Op::cuMulticastGetGranularity>(bytes, prop, option)
                                             : WrongForMulticast();
}

}  // extern "C"
