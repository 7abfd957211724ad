// SPDX-License-Identifier: Apache-2.0
// The driver interface of CUDA 3.1, with sizes and device addresses of 32 bits. Its calls work in contexts
// that its own cuCtxCreate made; in all others they answer CUDA_ERROR_INVALID_CONTEXT, as NVIDIA's driver
// does.
#include <algorithm>
#include <cstdint>

#include "guest_lib/remote.h"

namespace causeway::guest {
namespace {

constexpr unsigned kApiVersion = 3010;

CUresult NeedOldContext() {
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* context = CurrentContextObject();
  const bool old = context != nullptr && ContextOf(context).api_version == kApiVersion;
  return old ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

// What does not fit is the largest number that does.
unsigned int Clamp(size_t value) {
  return static_cast<unsigned>(std::min<size_t>(value, UINT32_MAX));
}
bool Fits(CUdeviceptr address) {
  return address <= UINT32_MAX;
}

CUDA_ARRAY_DESCRIPTOR Widen(const CUDA_ARRAY_DESCRIPTOR_v1& old) {
  return {old.Width, old.Height, old.Format, old.NumChannels};
}
CUDA_ARRAY3D_DESCRIPTOR Widen(const CUDA_ARRAY3D_DESCRIPTOR_v1& old) {
  return {old.Width, old.Height, old.Depth, old.Format, old.NumChannels, old.Flags};
}

// The parts that both structs name alike; every field is an integer or a pointer.
template <class New, class Old>
void WidenBox(const Old& old, New* box) {
  box->srcXInBytes = old.srcXInBytes;
  box->srcY = old.srcY;
  box->srcMemoryType = old.srcMemoryType;
  box->srcHost = old.srcHost;
  box->srcDevice = old.srcDevice;
  box->srcArray = old.srcArray;
  box->srcPitch = old.srcPitch;
  box->dstXInBytes = old.dstXInBytes;
  box->dstY = old.dstY;
  box->dstMemoryType = old.dstMemoryType;
  box->dstHost = old.dstHost;
  box->dstDevice = old.dstDevice;
  box->dstArray = old.dstArray;
  box->dstPitch = old.dstPitch;
  box->WidthInBytes = old.WidthInBytes;
  box->Height = old.Height;
}
CUDA_MEMCPY2D Widen(const CUDA_MEMCPY2D_v1& old) {
  CUDA_MEMCPY2D box{};
  WidenBox(old, &box);
  return box;
}
CUDA_MEMCPY3D Widen(const CUDA_MEMCPY3D_v1& old) {
  CUDA_MEMCPY3D box{};
  WidenBox(old, &box);
  box.srcZ = old.srcZ;
  box.srcLOD = old.srcLOD;
  box.srcHeight = old.srcHeight;
  box.dstZ = old.dstZ;
  box.dstLOD = old.dstLOD;
  box.dstHeight = old.dstHeight;
  box.Depth = old.Depth;
  return box;
}

// Runs the 64-bit form in an old context.
template <class Function, class... P>
CUresult Forward(Function function, P... p) {
  if (const CUresult result = NeedOldContext()) return result;
  return function(p...);
}

// The same where the first parameter is a struct of the old shape.
template <class Function, class Old, class... P>
CUresult ForwardWidened(Function function, const Old* old, P... p) {
  if (const CUresult result = NeedOldContext()) return result;
  if (old == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto widened = Widen(*old);
  return function(&widened, p...);
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuDeviceTotalMem(unsigned int* bytes, CUdevice device) {
  size_t total = 0;
  const CUresult result = cuDeviceTotalMem_v2(bytes != nullptr ? &total : nullptr, device);
  if (result == CUDA_SUCCESS) *bytes = Clamp(total);
  return result;
}

CUresult cuCtxCreate(CUcontext* context, unsigned int flags, CUdevice device) {
  const CUresult result = cuCtxCreate_v2(context, flags, device);
  if (result == CUDA_SUCCESS) ContextOf(Find(*context)).api_version = kApiVersion;
  return result;
}

CUresult cuModuleGetGlobal(CUdeviceptr_v1* address, unsigned int* bytes, CUmodule module, const char* name) {
  CUdeviceptr wide = 0;
  size_t size = 0;
  if (const CUresult result = Forward(cuModuleGetGlobal_v2, &wide, &size, module, name)) return result;
  if (address != nullptr && !Fits(wide)) return CUDA_ERROR_INVALID_VALUE;
  if (address != nullptr) *address = static_cast<CUdeviceptr_v1>(wide);
  if (bytes != nullptr) *bytes = Clamp(size);
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned int* free, unsigned int* total) {
  size_t wide_free = 0, wide_total = 0;
  if (free == nullptr || total == nullptr) return Forward(cuMemGetInfo_v2, nullptr, nullptr);
  if (const CUresult result = Forward(cuMemGetInfo_v2, &wide_free, &wide_total)) return result;
  *free = Clamp(wide_free);
  *total = Clamp(wide_total);
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr_v1* address, unsigned int bytes) {
  CUdeviceptr wide = 0;
  if (const CUresult result = Forward(cuMemAlloc_v2, address != nullptr ? &wide : nullptr, bytes)) {
    return result;
  }
  if (!Fits(wide)) {
    cuMemFree_v2(wide);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = static_cast<CUdeviceptr_v1>(wide);
  return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1* address, unsigned int* pitch, unsigned int width,
                         unsigned int height, unsigned int element) {
  CUdeviceptr wide = 0;
  size_t wide_pitch = 0;
  if (address == nullptr || pitch == nullptr) {
    return Forward(cuMemAllocPitch_v2, nullptr, nullptr, width, height, element);
  }
  if (const CUresult result = Forward(cuMemAllocPitch_v2, &wide, &wide_pitch, width, height, element)) {
    return result;
  }
  if (!Fits(wide) || wide_pitch > UINT32_MAX) {
    cuMemFree_v2(wide);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = static_cast<CUdeviceptr_v1>(wide);
  *pitch = static_cast<unsigned>(wide_pitch);
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr_v1 address) {
  return Forward(cuMemFree_v2, address);
}

CUresult cuMemGetAddressRange(CUdeviceptr_v1* base, unsigned int* bytes, CUdeviceptr_v1 address) {
  CUdeviceptr wide = 0;
  size_t size = 0;
  if (const CUresult result = Forward(cuMemGetAddressRange_v2, &wide, &size, address)) return result;
  if (base != nullptr) *base = static_cast<CUdeviceptr_v1>(wide);  // at or below an address that fits
  if (bytes != nullptr) *bytes = Clamp(size);
  return CUDA_SUCCESS;
}

CUresult cuMemAllocHost(void** address, unsigned int bytes) {
  return Forward(cuMemAllocHost_v2, address, bytes);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1* device, void* host, unsigned int flags) {
  CUdeviceptr wide = 0;
  if (const CUresult result =
          Forward(cuMemHostGetDevicePointer_v2, device != nullptr ? &wide : nullptr, host, flags)) {
    return result;
  }
  if (!Fits(wide)) return CUDA_ERROR_INVALID_VALUE;
  *device = static_cast<CUdeviceptr_v1>(wide);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr_v1 to, const void* from, unsigned int bytes) {
  return Forward(cuMemcpyHtoD_v2, to, from, bytes);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr_v1 to, const void* from, unsigned int bytes, CUstream stream) {
  return Forward(cuMemcpyHtoDAsync_v2, to, from, bytes, stream);
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr_v1 from, unsigned int bytes) {
  return Forward(cuMemcpyDtoH_v2, to, from, bytes);
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream) {
  return Forward(cuMemcpyDtoHAsync_v2, to, from, bytes, stream);
}
CUresult cuMemcpyDtoD(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes) {
  return Forward(cuMemcpyDtoD_v2, to, from, bytes);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream) {
  return Forward(cuMemcpyDtoDAsync_v2, to, from, bytes, stream);
}
CUresult cuMemcpyDtoA(CUarray to, unsigned int offset, CUdeviceptr_v1 from, unsigned int bytes) {
  return Forward(cuMemcpyDtoA_v2, to, offset, from, bytes);
}
CUresult cuMemcpyAtoD(CUdeviceptr_v1 to, CUarray from, unsigned int offset, unsigned int bytes) {
  return Forward(cuMemcpyAtoD_v2, to, from, offset, bytes);
}
CUresult cuMemcpyAtoA(CUarray to, unsigned int to_offset, CUarray from, unsigned int from_offset,
                      unsigned int bytes) {
  return Forward(cuMemcpyAtoA_v2, to, to_offset, from, from_offset, bytes);
}
CUresult cuMemcpyHtoA(CUarray to, unsigned int offset, const void* from, unsigned int bytes) {
  return Forward(cuMemcpyHtoA_v2, to, offset, from, bytes);
}
CUresult cuMemcpyHtoAAsync(CUarray to, unsigned int offset, const void* from, unsigned int bytes,
                           CUstream stream) {
  return Forward(cuMemcpyHtoAAsync_v2, to, offset, from, bytes, stream);
}
CUresult cuMemcpyAtoH(void* to, CUarray from, unsigned int offset, unsigned int bytes) {
  return Forward(cuMemcpyAtoH_v2, to, from, offset, bytes);
}
CUresult cuMemcpyAtoHAsync(void* to, CUarray from, unsigned int offset, unsigned int bytes, CUstream stream) {
  return Forward(cuMemcpyAtoHAsync_v2, to, from, offset, bytes, stream);
}

CUresult cuMemcpy2D(const CUDA_MEMCPY2D_v1* box) {
  return ForwardWidened(cuMemcpy2D_v2, box);
}
CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D_v1* box) {
  return ForwardWidened(cuMemcpy2DUnaligned_v2, box);
}
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D_v1* box, CUstream stream) {
  return ForwardWidened(cuMemcpy2DAsync_v2, box, stream);
}
CUresult cuMemcpy3D(const CUDA_MEMCPY3D_v1* box) {
  return ForwardWidened(cuMemcpy3D_v2, box);
}
CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D_v1* box, CUstream stream) {
  return ForwardWidened(cuMemcpy3DAsync_v2, box, stream);
}

CUresult cuMemsetD8(CUdeviceptr_v1 to, unsigned char value, unsigned int count) {
  return Forward(cuMemsetD8_v2, to, value, count);
}
CUresult cuMemsetD16(CUdeviceptr_v1 to, unsigned short value, unsigned int count) {
  return Forward(cuMemsetD16_v2, to, value, count);
}
CUresult cuMemsetD32(CUdeviceptr_v1 to, unsigned int value, unsigned int count) {
  return Forward(cuMemsetD32_v2, to, value, count);
}
CUresult cuMemsetD2D8(CUdeviceptr_v1 to, unsigned int pitch, unsigned char value, unsigned int width,
                      unsigned int height) {
  return Forward(cuMemsetD2D8_v2, to, pitch, value, width, height);
}
CUresult cuMemsetD2D16(CUdeviceptr_v1 to, unsigned int pitch, unsigned short value, unsigned int width,
                       unsigned int height) {
  return Forward(cuMemsetD2D16_v2, to, pitch, value, width, height);
}
CUresult cuMemsetD2D32(CUdeviceptr_v1 to, unsigned int pitch, unsigned int value, unsigned int width,
                       unsigned int height) {
  return Forward(cuMemsetD2D32_v2, to, pitch, value, width, height);
}

CUresult cuArrayCreate(CUarray* array, const CUDA_ARRAY_DESCRIPTOR_v1* descriptor) {
  if (const CUresult result = NeedOldContext()) return result;
  if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY_DESCRIPTOR wide = Widen(*descriptor);
  return cuArrayCreate_v2(array, &wide);
}

CUresult cuArray3DCreate(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR_v1* descriptor) {
  if (const CUresult result = NeedOldContext()) return result;
  if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY3D_DESCRIPTOR wide = Widen(*descriptor);
  return cuArray3DCreate_v2(array, &wide);
}

// No extent of an array reaches 32 bits.
CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1* descriptor, CUarray array) {
  CUDA_ARRAY_DESCRIPTOR wide{};
  const CUresult result = Forward(cuArrayGetDescriptor_v2, descriptor != nullptr ? &wide : nullptr, array);
  if (result != CUDA_SUCCESS) return result;
  *descriptor = {Clamp(wide.Width), Clamp(wide.Height), wide.Format, wide.NumChannels};
  return CUDA_SUCCESS;
}

CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1* descriptor, CUarray array) {
  CUDA_ARRAY3D_DESCRIPTOR wide{};
  const CUresult result = Forward(cuArray3DGetDescriptor_v2, descriptor != nullptr ? &wide : nullptr, array);
  if (result != CUDA_SUCCESS) return result;
  *descriptor = {Clamp(wide.Width), Clamp(wide.Height), Clamp(wide.Depth),
                 wide.Format,       wide.NumChannels,   wide.Flags};
  return CUDA_SUCCESS;
}

CUresult cuTexRefSetAddress(unsigned int* offset, CUtexref reference, CUdeviceptr_v1 address,
                            unsigned int bytes) {
  size_t wide = 0;
  const CUresult result =
      Forward(cuTexRefSetAddress_v2, offset != nullptr ? &wide : nullptr, reference, address, bytes);
  if (result == CUDA_SUCCESS && offset != nullptr) *offset = Clamp(wide);
  return result;
}

CUresult cuTexRefSetAddress2D(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR_v1* descriptor,
                              CUdeviceptr_v1 address, unsigned int pitch) {
  if (const CUresult result = NeedOldContext()) return result;
  if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY_DESCRIPTOR wide = Widen(*descriptor);
  return cuTexRefSetAddress2D_v2(reference, &wide, address, pitch);
}

CUresult cuTexRefGetAddress(CUdeviceptr_v1* address, CUtexref reference) {
  CUdeviceptr wide = 0;
  const CUresult result = Forward(cuTexRefGetAddress_v2, address != nullptr ? &wide : nullptr, reference);
  if (result != CUDA_SUCCESS) return result;
  if (!Fits(wide)) return CUDA_ERROR_INVALID_VALUE;
  *address = static_cast<CUdeviceptr_v1>(wide);
  return CUDA_SUCCESS;
}

}  // extern "C"
