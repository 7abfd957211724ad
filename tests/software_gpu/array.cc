// SPDX-License-Identifier: Apache-2.0
// Array calls. Elements are plain numbers; planar, compressed and sparse arrays are refused with 801.
#include "tests/software_gpu/array.h"

#include <algorithm>
#include <bit>

#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/handles.h"
#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {
namespace {

Registry<CUarray, Array>& Arrays() {
  static auto* arrays = new Registry<CUarray, Array>;
  return *arrays;
}

Registry<CUmipmappedArray, MipmappedArray>& MipmappedArrays() {
  static auto* arrays = new Registry<CUmipmappedArray, MipmappedArray>;
  return *arrays;
}

bool Fits(const CUDA_ARRAY3D_DESCRIPTOR& d, size_t width, size_t height, size_t depth) {
  return d.Width <= width && d.Height <= height && d.Depth <= depth;
}

// The largest extents of each kind, as the device's attributes state them.
bool ExtentsAreValid(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  const bool layered = (d.Flags & CUDA_ARRAY3D_LAYERED) != 0;
  const bool cube = (d.Flags & CUDA_ARRAY3D_CUBEMAP) != 0;
  if (d.Width == 0 || (layered && d.Depth == 0)) return false;
  if (cube) {
    if (d.Width != d.Height) return false;
    return layered ? d.Depth % 6 == 0 && Fits(d, 32768, 32768, 2046) : d.Depth == 6 && d.Width <= 32768;
  }
  if (layered) return Fits(d, 32768, 32768, 2048);
  if (d.Height == 0) return d.Depth == 0 && d.Width <= 131072;
  if (d.Depth == 0) return Fits(d, 131072, 65536, 0);
  return Fits(d, 16384, 16384, 16384) || Fits(d, 8192, 8192, 32768);
}

CUresult Check(const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  constexpr unsigned kKnownFlags = 0x1ff;
  const unsigned channels = descriptor.NumChannels;
  const bool channels_ok = channels == 1 || channels == 2 || channels == 4;
  if (!channels_ok || !ExtentsAreValid(descriptor) || (descriptor.Flags & ~kKnownFlags) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((descriptor.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (ElementBytes(descriptor.Format, channels) != 0) return CUDA_SUCCESS;
  // The known formats that this library lacks start at 10:10:10:2; below that nothing else is defined.
  return descriptor.Format >= CU_AD_FORMAT_UNORM_INT_101010_2 &&
                 descriptor.Format <= CU_AD_FORMAT_SNORM_INT16X4
             ? CUDA_ERROR_NOT_SUPPORTED
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult Create(const ContextRef& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, bool level,
                CUarray* handle) {
  auto array = std::make_shared<Array>();
  array->descriptor = descriptor;
  array->element_bytes = ElementBytes(descriptor.Format, descriptor.NumChannels);
  array->context = context;
  array->level = level;
  array->memory = AllocateDeviceMemory(context, array->SliceBytes() * array->Slices(), MemoryKind::kDevice);
  if (array->memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  array->memory->internal = true;
  *handle = Arrays().Add(array);
  return CUDA_SUCCESS;
}

CUresult CreateFromApi(const ContextRef& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                       CUarray* handle) {
  if (CUresult result = Check(descriptor); result != CUDA_SUCCESS) return result;
  if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
  return Create(context, descriptor, false, handle);
}

void End(CUarray handle) {
  if (ArrayRef array = Arrays().Remove(handle)) ReleaseMemory(array->memory);
}

CUDA_ARRAY3D_DESCRIPTOR LevelOf(const CUDA_ARRAY3D_DESCRIPTOR& whole, unsigned level) {
  auto halved = [&](size_t extent) { return extent == 0 ? 0 : std::max<size_t>(1, extent >> level); };
  CUDA_ARRAY3D_DESCRIPTOR part = whole;
  part.Width = halved(whole.Width);
  part.Height = halved(whole.Height);
  const bool layers = (whole.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  if (!layers) part.Depth = halved(whole.Depth);
  return part;
}

CUresult CreateMipmapped(const ContextRef& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                         unsigned levels, CUmipmappedArray* handle) {
  if (CUresult result = Check(descriptor); result != CUDA_SUCCESS) return result;
  if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
  // As many levels as it takes to get to one element, at most.
  const size_t longest = std::max({descriptor.Width, descriptor.Height, size_t{1}});
  const unsigned most = static_cast<unsigned>(std::bit_width(longest));
  auto array = std::make_shared<MipmappedArray>();
  array->descriptor = descriptor;
  array->context = context;
  for (unsigned level = 0; level < std::clamp(levels, 1u, most); ++level) {
    CUarray part = nullptr;
    if (CUresult result = Create(context, LevelOf(descriptor, level), true, &part); result != CUDA_SUCCESS) {
      for (CUarray made : array->levels) End(made);
      return result;
    }
    array->levels.push_back(part);
  }
  *handle = MipmappedArrays().Add(array);
  return CUDA_SUCCESS;
}

}  // namespace

unsigned ElementBytes(CUarray_format format, unsigned channels) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return channels * 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return channels * 4;
    default:
      return 0;
  }
}

ArrayRef FindArray(CUarray handle) {
  return Arrays().Find(handle);
}

MipmappedArrayRef FindMipmappedArray(CUmipmappedArray handle) {
  return MipmappedArrays().Find(handle);
}

void DestroyArraysOf(Context& context) {
  MipmappedArrays().RemoveIf([&](const MipmappedArray& a) { return a.context.lock().get() == &context; });
  Arrays().RemoveIf([&](const Array& a) { return a.context.lock().get() == &context; });
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuArrayCreate_v2(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pHandle == nullptr || pAllocateArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY_DESCRIPTOR& flat = *pAllocateArray;
    return CreateFromApi(context, {flat.Width, flat.Height, 0, flat.Format, flat.NumChannels, 0}, pHandle);
  });
}

CUresult cuArray3DCreate_v2(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pHandle == nullptr || pAllocateArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return CreateFromApi(context, *pAllocateArray, pHandle);
  });
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    ArrayRef array = FindArray(hArray);
    if (pArrayDescriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const CUDA_ARRAY3D_DESCRIPTOR& d = array->descriptor;
    *pArrayDescriptor = {d.Width, d.Height, d.Format, d.NumChannels};
    return CUDA_SUCCESS;
  });
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    ArrayRef array = FindArray(hArray);
    if (pArrayDescriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *pArrayDescriptor = array->descriptor;
    return CUDA_SUCCESS;
  });
}

CUresult cuArrayDestroy(CUarray hArray) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    ArrayRef array = FindArray(hArray);
    if (array == nullptr || array->level) return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
    SynchronizeDevice();
    End(hArray);
    return CUDA_SUCCESS;
  });
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc,
                                unsigned int numMipmapLevels) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pHandle == nullptr || pMipmappedArrayDesc == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return CreateMipmapped(context, *pMipmappedArrayDesc, numMipmapLevels, pHandle);
  });
}

CUresult cuMipmappedArrayGetLevel(CUarray* pLevelArray, CUmipmappedArray hMipmappedArray,
                                  unsigned int level) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    MipmappedArrayRef array = FindMipmappedArray(hMipmappedArray);
    if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (pLevelArray == nullptr || level >= array->levels.size()) return CUDA_ERROR_INVALID_VALUE;
    *pLevelArray = array->levels[level];
    return CUDA_SUCCESS;
  });
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (FindMipmappedArray(hMipmappedArray) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
    SynchronizeDevice();
    MipmappedArrayRef array = MipmappedArrays().Remove(hMipmappedArray);
    if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    for (CUarray level : array->levels) End(level);
    return CUDA_SUCCESS;
  });
}

// No array here is sparse, deferred or planar, so these have nothing to tell.
CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* sparseProperties, CUarray array) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (sparseProperties == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return FindArray(array) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* sparseProperties,
                                             CUmipmappedArray mipmap) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (sparseProperties == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return FindMipmappedArray(mipmap) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* memoryRequirements, CUarray array,
                                      CUdevice) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (memoryRequirements == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return FindArray(array) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* memoryRequirements,
                                               CUmipmappedArray mipmap, CUdevice) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (memoryRequirements == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return FindMipmappedArray(mipmap) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuArrayGetPlane(CUarray* pPlaneArray, CUarray hArray, unsigned int) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (pPlaneArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return FindArray(hArray) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
  });
}

}  // extern "C"
