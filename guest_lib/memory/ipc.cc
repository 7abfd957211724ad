// SPDX-License-Identifier: Apache-2.0
// IPC handles of memory and events.
#include "guest_lib/addresses/address_windows.h"
#include "guest_lib/memory/memory.h"
#include "guest_lib/memory/shared_descriptor.h"
#include "guest_lib/stream/remote.h"

using namespace causeway;
using namespace causeway::guest;

namespace {

// Asks for a token, which fills the 64 bytes.
template <class Body>
CUresult FetchBlob(Op op, const Body& body, void* blob) {
  SharedToken token{};
  if (const CUresult result = AskHost(op, body, &token)) return result;
  FillBlob(blob, token);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  if (const CUresult result = NeedContext()) return result;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  NoteSharedDeviceMemory();
  return FetchBlob(Op::cuIpcGetMemHandle, ShareAddressBody{address, 0}, handle);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  if (const CUresult result = NeedContext()) return result;
  SharedToken token;
  if (address == nullptr || !ReadBlob(&handle, &token)) return CUDA_ERROR_INVALID_VALUE;
  NoteSharedDeviceMemory();
  OpenedMemory opened{};
  if (const CUresult result = AskHost(Op::cuIpcOpenMemHandle_v2, OpenSharedBody{token, 0, flags, 0}, &opened))
    return result;
  if (!AdmitDeviceMemory(opened.address, opened.bytes)) {
    Wait<Op::cuIpcCloseMemHandle>(opened.address);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  RememberAllocation(opened.address, opened.bytes, false);
  *address = opened.address;
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  if (const CUresult result = NeedContext()) return result;
  const auto taken = TakeAllocations(address, 1);
  const CUresult result = Wait<Op::cuIpcCloseMemHandle>(address);
  // The driver counts how often memory was opened; only it knows when it is gone.
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (result != CUDA_SUCCESS || Wait<Op::cuMemGetAddressRange_v2>(&base, &bytes, address) == CUDA_SUCCESS) {
    ReturnAllocations(taken);
  }
  return result;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  if (const CUresult result = NeedContext()) return result;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Object* object = Find(event);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return FetchBlob(Op::cuIpcGetEventHandle, WireOf(object), handle);
}

CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  if (const CUresult result = NeedContext()) return result;
  SharedToken token;
  if (event == nullptr || !ReadBlob(&handle, &token)) return CUDA_ERROR_INVALID_VALUE;
  PendingCall call(Op::cuIpcOpenEventHandle);
  Remote remote;
  const auto made = remote.Make<CUevent>(call.writer());
  call.writer().Put(OpenSharedBody{token, remote.ToWire(made, call.writer()), 0, 0});
  const CUresult result = call.Finish();
  if (result != CUDA_SUCCESS) {
    remote.Forget(made);
    return result;
  }
  Find(made)->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  *event = made;
  return CUDA_SUCCESS;
}

}  // extern "C"
