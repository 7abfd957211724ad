// SPDX-License-Identifier: Apache-2.0
// The driver interface of CUDA 3.1, with sizes and device addresses of 32 bits. Its calls work in contexts
// that its own cuCtxCreate made, and NVIDIA's driver makes no such context on a device that needs more than
// 32 bits: there is none that these could work in.
#include <algorithm>
#include <cstdint>

#include "guest_lib/stream/remote.h"

using namespace causeway;
using namespace causeway::guest;

namespace {

CUresult NoOldContext() {
  const CUresult result = InitialisedOrError();
  return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_CONTEXT;
}

// Of calls for which the driver looks at the object before it looks at the context.
CUresult NeedOldContextOf(const void* object) {
  if (const CUresult result = InitialisedOrError()) return result;
  return object == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

extern "C" {

// What does not fit is the largest number that does.
CUresult cuDeviceTotalMem(unsigned int* bytes, CUdevice device) {
  size_t total = 0;
  const CUresult result = cuDeviceTotalMem_v2(bytes != nullptr ? &total : nullptr, device);
  if (result == CUDA_SUCCESS) *bytes = static_cast<unsigned>(std::min<size_t>(total, UINT32_MAX));
  return result;
}

CUresult cuCtxCreate(CUcontext* context, unsigned int, CUdevice device) {
  if (const CUresult result = InitialisedOrError()) return result;
  int count = 0;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = cuDeviceGetCount(&count)) return result;
  return device < 0 || device >= count ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_OUT_OF_MEMORY;
}

// The module is looked at before its context.
CUresult cuModuleGetGlobal(CUdeviceptr_v1*, unsigned int*, CUmodule module, const char*) {
  if (const CUresult result = InitialisedOrError()) return result;
  return module == nullptr || Find(module) == nullptr ? CUDA_ERROR_INVALID_HANDLE
                                                      : CUDA_ERROR_INVALID_CONTEXT;
}

#define NEEDS_OLD_CONTEXT(fn, ...) \
  CUresult fn(__VA_ARGS__) {       \
    return NoOldContext();         \
  }
NEEDS_OLD_CONTEXT(cuMemGetInfo, unsigned int*, unsigned int*)
NEEDS_OLD_CONTEXT(cuMemAlloc, CUdeviceptr_v1*, unsigned int)
NEEDS_OLD_CONTEXT(cuMemAllocPitch, CUdeviceptr_v1*, unsigned int*, unsigned int, unsigned int, unsigned int)
NEEDS_OLD_CONTEXT(cuMemGetAddressRange, CUdeviceptr_v1*, unsigned int*, CUdeviceptr_v1)
NEEDS_OLD_CONTEXT(cuMemAllocHost, void**, unsigned int)
NEEDS_OLD_CONTEXT(cuMemHostGetDevicePointer, CUdeviceptr_v1*, void*, unsigned int)
NEEDS_OLD_CONTEXT(cuMemcpyHtoD, CUdeviceptr_v1, const void*, unsigned int)
NEEDS_OLD_CONTEXT(cuMemcpyHtoDAsync, CUdeviceptr_v1, const void*, unsigned int, CUstream)
NEEDS_OLD_CONTEXT(cuMemcpyDtoH, void*, CUdeviceptr_v1, unsigned int)
NEEDS_OLD_CONTEXT(cuMemcpyDtoHAsync, void*, CUdeviceptr_v1, unsigned int, CUstream)
NEEDS_OLD_CONTEXT(cuMemcpyDtoD, CUdeviceptr_v1, CUdeviceptr_v1, unsigned int)
NEEDS_OLD_CONTEXT(cuMemcpyDtoDAsync, CUdeviceptr_v1, CUdeviceptr_v1, unsigned int, CUstream)
NEEDS_OLD_CONTEXT(cuMemcpyDtoA, CUarray, unsigned int, CUdeviceptr_v1, unsigned int)
NEEDS_OLD_CONTEXT(cuMemcpyAtoD, CUdeviceptr_v1, CUarray, unsigned int, unsigned int)
NEEDS_OLD_CONTEXT(cuMemcpyAtoA, CUarray, unsigned int, CUarray, unsigned int, unsigned int)
NEEDS_OLD_CONTEXT(cuMemcpyHtoA, CUarray, unsigned int, const void*, unsigned int)
NEEDS_OLD_CONTEXT(cuMemcpyHtoAAsync, CUarray, unsigned int, const void*, unsigned int, CUstream)
NEEDS_OLD_CONTEXT(cuMemcpyAtoH, void*, CUarray, unsigned int, unsigned int)
NEEDS_OLD_CONTEXT(cuMemcpyAtoHAsync, void*, CUarray, unsigned int, unsigned int, CUstream)
NEEDS_OLD_CONTEXT(cuMemcpy2D, const CUDA_MEMCPY2D_v1*)
NEEDS_OLD_CONTEXT(cuMemcpy2DUnaligned, const CUDA_MEMCPY2D_v1*)
NEEDS_OLD_CONTEXT(cuMemcpy2DAsync, const CUDA_MEMCPY2D_v1*, CUstream)
NEEDS_OLD_CONTEXT(cuMemcpy3D, const CUDA_MEMCPY3D_v1*)
NEEDS_OLD_CONTEXT(cuMemcpy3DAsync, const CUDA_MEMCPY3D_v1*, CUstream)
NEEDS_OLD_CONTEXT(cuMemsetD8, CUdeviceptr_v1, unsigned char, unsigned int)
NEEDS_OLD_CONTEXT(cuMemsetD16, CUdeviceptr_v1, unsigned short, unsigned int)
NEEDS_OLD_CONTEXT(cuMemsetD32, CUdeviceptr_v1, unsigned int, unsigned int)
NEEDS_OLD_CONTEXT(cuMemsetD2D8, CUdeviceptr_v1, unsigned int, unsigned char, unsigned int, unsigned int)
NEEDS_OLD_CONTEXT(cuMemsetD2D16, CUdeviceptr_v1, unsigned int, unsigned short, unsigned int, unsigned int)
NEEDS_OLD_CONTEXT(cuMemsetD2D32, CUdeviceptr_v1, unsigned int, unsigned int, unsigned int, unsigned int)
NEEDS_OLD_CONTEXT(cuArrayCreate, CUarray*, const CUDA_ARRAY_DESCRIPTOR_v1*)
NEEDS_OLD_CONTEXT(cuArray3DCreate, CUarray*, const CUDA_ARRAY3D_DESCRIPTOR_v1*)
CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1*, CUarray array) {
  return NeedOldContextOf(array);
}
CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1*, CUarray array) {
  return NeedOldContextOf(array);
}
CUresult cuTexRefSetAddress(unsigned int*, CUtexref reference, CUdeviceptr_v1, unsigned int) {
  return NeedOldContextOf(reference);
}
CUresult cuTexRefSetAddress2D(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR_v1*, CUdeviceptr_v1,
                              unsigned int) {
  return NeedOldContextOf(reference);
}
CUresult cuTexRefGetAddress(CUdeviceptr_v1*, CUtexref reference) {
  return NeedOldContextOf(reference);
}
// The driver looks at captures first. Without a context to free nothing is a success.
CUresult cuMemFree(CUdeviceptr_v1 address) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (const CUresult refused = CaptureRefusal(CaptureRule::kUnsafe)) return refused;
  return address == 0 && CurrentContextObject() == nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
#undef NEEDS_OLD_CONTEXT

}  // extern "C"
