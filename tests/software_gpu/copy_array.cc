// SPDX-License-Identifier: Apache-2.0
// Copies to and from one-dimensional arrays, as boxes of one row.
#include <cstring>

#include "tests/software_gpu/array.h"
#include "tests/software_gpu/copy_box.h"

namespace causeway::software_gpu {
namespace {

CUDA_MEMCPY3D Row(size_t bytes) {
  CUDA_MEMCPY3D box;
  std::memset(&box, 0, sizeof box);
  box.WidthInBytes = bytes;
  box.Height = 1;
  box.Depth = 1;
  return box;
}

void From(CUDA_MEMCPY3D* box, CUarray array, size_t offset) {
  box->srcMemoryType = CU_MEMORYTYPE_ARRAY;
  box->srcArray = array;
  box->srcXInBytes = offset;
}
void From(CUDA_MEMCPY3D* box, const void* host) {
  box->srcMemoryType = CU_MEMORYTYPE_HOST;
  box->srcHost = host;
}
void From(CUDA_MEMCPY3D* box, CUdeviceptr device) {
  box->srcMemoryType = CU_MEMORYTYPE_DEVICE;
  box->srcDevice = device;
}
void To(CUDA_MEMCPY3D* box, CUarray array, size_t offset) {
  box->dstMemoryType = CU_MEMORYTYPE_ARRAY;
  box->dstArray = array;
  box->dstXInBytes = offset;
}
void To(CUDA_MEMCPY3D* box, void* host) {
  box->dstMemoryType = CU_MEMORYTYPE_HOST;
  box->dstHost = host;
}
void To(CUDA_MEMCPY3D* box, CUdeviceptr device) {
  box->dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box->dstDevice = device;
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount) {
  return InContext(__func__, [&](const ContextRef& context) {
    CUDA_MEMCPY3D box = Row(ByteCount);
    From(&box, srcDevice);
    To(&box, dstArray, dstOffset);
    return CopyBox(context, box, false, nullptr);
  });
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount) {
  return InContext(__func__, [&](const ContextRef& context) {
    CUDA_MEMCPY3D box = Row(ByteCount);
    From(&box, srcArray, srcOffset);
    To(&box, dstDevice);
    return CopyBox(context, box, false, nullptr);
  });
}

CUresult cuMemcpyAtoA_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
                         size_t ByteCount) {
  return InContext(__func__, [&](const ContextRef& context) {
    CUDA_MEMCPY3D box = Row(ByteCount);
    From(&box, srcArray, srcOffset);
    To(&box, dstArray, dstOffset);
    return CopyBox(context, box, false, nullptr);
  });
}

CUresult cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void* srcHost, size_t ByteCount) {
  return InContext(__func__, [&](const ContextRef& context) {
    CUDA_MEMCPY3D box = Row(ByteCount);
    From(&box, srcHost);
    To(&box, dstArray, dstOffset);
    return CopyBox(context, box, false, nullptr);
  });
}

CUresult cuMemcpyAtoH_v2(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount) {
  return InContext(__func__, [&](const ContextRef& context) {
    CUDA_MEMCPY3D box = Row(ByteCount);
    From(&box, srcArray, srcOffset);
    To(&box, dstHost);
    return CopyBox(context, box, false, nullptr);
  });
}

CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void* srcHost, size_t ByteCount,
                              CUstream hStream) {
  return InContext(__func__, [&](const ContextRef& context) {
    CUDA_MEMCPY3D box = Row(ByteCount);
    From(&box, srcHost);
    To(&box, dstArray, dstOffset);
    return CopyBox(context, box, true, hStream);
  });
}

CUresult cuMemcpyAtoHAsync_v2(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                              CUstream hStream) {
  return InContext(__func__, [&](const ContextRef& context) {
    CUDA_MEMCPY3D box = Row(ByteCount);
    From(&box, srcArray, srcOffset);
    To(&box, dstHost);
    return CopyBox(context, box, true, hStream);
  });
}

}  // extern "C"
