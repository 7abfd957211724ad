// SPDX-License-Identifier: Apache-2.0
// Notifications that a device sends unasked.
#include "guest_lib/callbacks/callbacks.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/callback_messages.h"

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuDeviceRegisterAsyncNotification(CUdevice device, CUasyncCallback function, void* user_data,
                                           CUasyncCallbackHandle* handle) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (function == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  Object* object = NewObject(HandleKind::kAsyncCallback, nullptr);
  if (object == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto made = reinterpret_cast<CUasyncCallbackHandle>(object);
  CUresult result = CUDA_SUCCESS;
  object->id = callbacks::RegisterNotification(function, user_data, made, &result);
  if (result == CUDA_SUCCESS) {
    result = AskHost(Op::cuDeviceRegisterAsyncNotification,
                     NotificationBody{WireOf(object), object->id, device, 0});
  }
  if (result != CUDA_SUCCESS) {
    callbacks::Release(object->id);
    FreeObject(object);
    return result;
  }
  *handle = made;
  return CUDA_SUCCESS;
}

CUresult cuDeviceUnregisterAsyncNotification(CUdevice device, CUasyncCallbackHandle handle) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  const Object* object = Find(handle);
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t id = object->id;
  const CUresult result = Wait<Op::cuDeviceUnregisterAsyncNotification>(device, handle);
  if (result == CUDA_SUCCESS) callbacks::Release(id);
  return result;
}

}  // extern "C"
