// SPDX-License-Identifier: Apache-2.0
// 2D and 3D copies. They wait as the linear copies do, except that pageable sources are never captured.
#include "tests/software_gpu/copy_box.h"

#include <cstring>

#include "tests/software_gpu/device_access.h"
#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/kept_mapped.h"
#include "tests/software_gpu/memory.h"
#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {
namespace {

struct SideDescription {
  CUmemorytype type;
  const void* host;
  CUdeviceptr device;
  CUarray array;
  size_t pitch, height;  // pitch 0: tightly packed; height 0: as high as the box
  size_t x_bytes, y, z;
};

size_t Extent(const BoxCopy& box, const BoxSide& side) {
  return (box.slices - 1) * side.slice_pitch + (box.rows - 1) * side.row_pitch + box.row_bytes;
}

CUresult DescribeArray(const SideDescription& side, const BoxCopy& box, BoxSide* described) {
  ArrayRef array = FindArray(side.array);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (side.x_bytes > array->RowBytes() || box.row_bytes > array->RowBytes() - side.x_bytes ||
      side.y > array->Rows() || box.rows > array->Rows() - side.y || side.z > array->Slices() ||
      box.slices > array->Slices() - side.z) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  described->row_pitch = array->RowBytes();
  described->slice_pitch = array->SliceBytes();
  described->first =
      array->memory->base + side.x_bytes + side.y * described->row_pitch + side.z * described->slice_pitch;
  described->extent = Extent(box, *described);
  described->array = std::move(array);
  return CUDA_SUCCESS;
}

CUresult DescribeSide(const SideDescription& side, const BoxCopy& box, BoxSide* described) {
  if (side.type == CU_MEMORYTYPE_ARRAY) return DescribeArray(side, box, described);
  bool host_type = side.type == CU_MEMORYTYPE_HOST;
  if (!host_type && side.type != CU_MEMORYTYPE_DEVICE && side.type != CU_MEMORYTYPE_UNIFIED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  uint64_t base = host_type ? reinterpret_cast<uintptr_t>(side.host) : side.device;
  if (base == 0) return CUDA_ERROR_INVALID_VALUE;
  size_t row_end = side.x_bytes + box.row_bytes;
  described->row_pitch = side.pitch != 0 ? side.pitch : row_end;
  size_t rows_per_slice = side.height != 0 ? side.height : side.y + box.rows;
  if (row_end > described->row_pitch && (box.rows > 1 || box.slices > 1)) return CUDA_ERROR_INVALID_VALUE;
  if (box.slices > 1 && side.y + box.rows > rows_per_slice) return CUDA_ERROR_INVALID_VALUE;
  described->slice_pitch = described->row_pitch * rows_per_slice;
  described->first = base + side.x_bytes + side.y * described->row_pitch + side.z * described->slice_pitch;
  described->extent = Extent(box, *described);
  RangeClass range_class = ClassifyRange(described->first, described->extent);
  if (range_class == RangeClass::kInvalid) return CUDA_ERROR_INVALID_VALUE;
  if (range_class == RangeClass::kPageable && side.type == CU_MEMORYTYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  described->pageable = range_class == RangeClass::kPageable;
  described->device = range_class == RangeClass::kDevice;
  described->host = range_class != RangeClass::kDevice || IsManagedMemory(described->first);
  return CUDA_SUCCESS;
}

void CopyRows(const BoxCopy& box) {
  for (size_t slice = 0; slice < box.slices; ++slice) {
    for (size_t row = 0; row < box.rows; ++row) {
      auto* to = reinterpret_cast<void*>(box.to.first + slice * box.to.slice_pitch + row * box.to.row_pitch);
      auto* from = reinterpret_cast<const void*>(box.from.first + slice * box.from.slice_pitch +
                                                 row * box.from.row_pitch);
      Move(to, box.to.device, from, box.from.device, box.row_bytes);
    }
  }
}

void RunBox(const BoxCopy& box) {
  Touch({{box.to.first, box.to.extent, true, box.to.pageable},
         {box.from.first, box.from.extent, false, box.from.pageable}},
        [&] { CopyRows(box); });
}

CUDA_MEMCPY3D AsThreeDimensional(const CUDA_MEMCPY2D& copy) {
  CUDA_MEMCPY3D box;
  std::memset(&box, 0, sizeof box);
  box.srcXInBytes = copy.srcXInBytes;
  box.srcY = copy.srcY;
  box.srcMemoryType = copy.srcMemoryType;
  box.srcHost = copy.srcHost;
  box.srcDevice = copy.srcDevice;
  box.srcArray = copy.srcArray;
  box.srcPitch = copy.srcPitch;
  box.dstXInBytes = copy.dstXInBytes;
  box.dstY = copy.dstY;
  box.dstMemoryType = copy.dstMemoryType;
  box.dstHost = copy.dstHost;
  box.dstDevice = copy.dstDevice;
  box.dstArray = copy.dstArray;
  box.dstPitch = copy.dstPitch;
  box.WidthInBytes = copy.WidthInBytes;
  box.Height = copy.Height;
  box.Depth = 1;
  return box;
}

CUDA_MEMCPY3D WithoutPeer(const CUDA_MEMCPY3D_PEER& copy) {
  CUDA_MEMCPY3D box;
  static_assert(sizeof box == sizeof copy);  // the same layout: contexts take the reserved words
  std::memcpy(&box, &copy, sizeof box);
  box.reserved0 = nullptr;
  box.reserved1 = nullptr;
  return box;
}

CUresult CopyPlane(const char* function, const CUDA_MEMCPY2D* copy, bool asynchronous, CUstream handle) {
  return InContext(function, [&](const ContextRef& context) -> CUresult {
    if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return CopyBox(context, AsThreeDimensional(*copy), asynchronous, handle);
  });
}

}  // namespace

CUresult DescribeBox(const CUDA_MEMCPY3D& copy, BoxCopy* box) {
  box->row_bytes = copy.WidthInBytes;
  box->rows = copy.Height;
  box->slices = copy.Depth;
  if (box->IsEmpty()) return CUDA_SUCCESS;
  // Keeps every product below 2^64 / 4: no real box is larger.
  constexpr size_t kMaxExtent = size_t{1} << 20;
  constexpr size_t kMaxRowBytes = size_t{1} << 40;
  if (box->rows > kMaxExtent * 4 || box->slices > kMaxExtent || box->row_bytes > kMaxRowBytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult result = DescribeSide({copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstArray,
                                  copy.dstPitch, copy.dstHeight, copy.dstXInBytes, copy.dstY, copy.dstZ},
                                 *box, &box->to);
  if (result != CUDA_SUCCESS) return result;
  return DescribeSide({copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcArray, copy.srcPitch,
                       copy.srcHeight, copy.srcXInBytes, copy.srcY, copy.srcZ},
                      *box, &box->from);
}

CUresult CopyBox(const ContextRef& context, const CUDA_MEMCPY3D& copy, bool asynchronous, CUstream handle) {
  StreamRef stream = FindStream(context, asynchronous ? handle : nullptr);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  BoxCopy box;
  CUresult result = DescribeBox(copy, &box);
  if (result != CUDA_SUCCESS || box.IsEmpty()) return result;
  CompletionRef done;
  Operation operation{CU_GRAPH_NODE_TYPE_MEMCPY, [box] { RunBox(box); },
                      std::make_shared<CUDA_MEMCPY3D>(copy)};
  result = Submit(stream, std::move(operation), &done);
  bool waits = asynchronous ? box.to.pageable || box.from.pageable : box.to.host || box.from.host;
  if (result != CUDA_SUCCESS || !waits || done == nullptr) return result;
  done->Wait();
  if (!asynchronous) FlushDeviceOutput();
  return StickyError();
}

CUresult MakeBoxCopyOperation(const CUDA_MEMCPY3D& copy, Operation* operation) {
  BoxCopy box;
  CUresult result = DescribeBox(copy, &box);
  if (result != CUDA_SUCCESS) return result;
  operation->type = CU_GRAPH_NODE_TYPE_MEMCPY;
  operation->run = [box] {
    if (!box.IsEmpty()) RunBox(box);
  };
  operation->parameters = std::make_shared<CUDA_MEMCPY3D>(copy);
  return CUDA_SUCCESS;
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* pCopy) {
  return CopyPlane(__func__, pCopy, false, nullptr);
}
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* pCopy) {
  return CopyPlane(__func__, pCopy, false, nullptr);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* pCopy, CUstream hStream) {
  return CopyPlane(__func__, pCopy, true, hStream);
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* pCopy) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pCopy == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return CopyBox(context, *pCopy, false, nullptr);
  });
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* pCopy, CUstream hStream) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pCopy == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return CopyBox(context, *pCopy, true, hStream);
  });
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* pCopy) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pCopy == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return CopyBox(context, WithoutPeer(*pCopy), false, nullptr);
  });
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* pCopy, CUstream hStream) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pCopy == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return CopyBox(context, WithoutPeer(*pCopy), true, hStream);
  });
}

}  // extern "C"
