// SPDX-License-Identifier: Apache-2.0
// Texture and surface objects. Their handles are small numbers, as kernels get them by value.
#include "tests/software_gpu/texture.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <shared_mutex>

#include "tests/software_gpu/array.h"
#include "tests/software_gpu/texture_sample.h"

namespace causeway::software_gpu {
namespace {

struct TextureObject {
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC how{};
  CUDA_RESOURCE_VIEW_DESC view{};
  bool surface = false;
  std::vector<ArrayRef> levels;  // of an array resource; keep it readable
  std::weak_ptr<Context> context;
};
using TextureRef = std::shared_ptr<const TextureObject>;

struct Objects {
  std::shared_mutex mutex;
  std::map<uint64_t, TextureRef> objects;
  uint64_t next = 1;
};
Objects& All() {
  static auto* all = new Objects;
  return *all;
}

TextureRef Find(uint64_t handle, bool surface) {
  Objects& all = All();
  std::shared_lock lock(all.mutex);
  auto found = all.objects.find(handle);
  return found == all.objects.end() || found->second->surface != surface ? nullptr : found->second;
}

uint64_t Add(const std::shared_ptr<TextureObject>& object) {
  Objects& all = All();
  std::unique_lock lock(all.mutex);
  all.objects[all.next] = object;
  return all.next++;
}

CUresult Remove(uint64_t handle, bool surface) {
  if (Find(handle, surface) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Objects& all = All();
  std::unique_lock lock(all.mutex);
  all.objects.erase(handle);
  return CUDA_SUCCESS;
}

// Checks the resource and holds its arrays.
CUresult Hold(const CUDA_RESOURCE_DESC& resource, TextureObject* object) {
  if (resource.flags != 0) return CUDA_ERROR_INVALID_VALUE;
  object->resource = resource;
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: {
      ArrayRef array = FindArray(resource.res.array.hArray);
      if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
      object->levels.push_back(std::move(array));
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
      MipmappedArrayRef array = FindMipmappedArray(resource.res.mipmap.hMipmappedArray);
      if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
      for (CUarray level : array->levels) {
        object->levels.push_back(FindArray(level));
        if (object->levels.back() == nullptr) return CUDA_ERROR_INVALID_HANDLE;  // it ends meanwhile
      }
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto& linear = resource.res.linear;
      const bool ok = linear.devPtr % 512 == 0 && ElementBytes(linear.format, linear.numChannels) != 0 &&
                      linear.sizeInBytes != 0 && IsAddressable(linear.devPtr, linear.sizeInBytes);
      return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& plane = resource.res.pitch2D;
      const size_t row = plane.width * ElementBytes(plane.format, plane.numChannels);
      const bool ok = plane.devPtr % 512 == 0 && plane.pitchInBytes % 32 == 0 && row != 0 &&
                      row <= plane.pitchInBytes && plane.height != 0 &&
                      IsAddressable(plane.devPtr, plane.pitchInBytes * (plane.height - 1) + row);
      return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

TexelGrid GridOf(const Array& array) {
  TexelGrid grid;
  const bool layers = (array.descriptor.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  grid.data = array.data();
  grid.width = array.descriptor.Width;
  grid.height = array.Rows();
  (layers ? grid.layers : grid.depth) = array.Slices();
  grid.row_bytes = array.RowBytes();
  grid.slice_bytes = array.SliceBytes();
  grid.format = array.descriptor.Format;
  grid.channels = array.descriptor.NumChannels;
  return grid;
}

TexelGrid GridOf(const CUDA_RESOURCE_DESC& resource) {
  TexelGrid grid;
  if (resource.resType == CU_RESOURCE_TYPE_LINEAR) {
    const auto& linear = resource.res.linear;
    grid.data = reinterpret_cast<const std::byte*>(linear.devPtr);
    grid.format = linear.format;
    grid.channels = linear.numChannels;
    grid.width = linear.sizeInBytes / ElementBytes(linear.format, linear.numChannels);
    return grid;
  }
  const auto& plane = resource.res.pitch2D;
  grid.data = reinterpret_cast<const std::byte*>(plane.devPtr);
  grid.format = plane.format;
  grid.channels = plane.numChannels;
  grid.width = plane.width;
  grid.height = plane.height;
  grid.row_bytes = plane.pitchInBytes;
  return grid;
}

// Between two levels a linear mipmap filter mixes floats; otherwise the nearer one is read.
RawTexel SampleLevels(const TextureObject& object, const TextureRead& read) {
  const float last = static_cast<float>(object.levels.size() - 1);
  const float wanted =
      std::max(object.how.minMipmapLevelClamp,
               std::min(object.how.maxMipmapLevelClamp, read.level + object.how.mipmapLevelBias));
  const float level = std::clamp(wanted, 0.0f, last);
  const auto nearest = static_cast<size_t>(std::floor(level + 0.5f));
  const TexelGrid grid = GridOf(*object.levels[nearest]);
  if (object.how.mipmapFilterMode == CU_TR_FILTER_MODE_POINT || ReadsIntegers(grid, object.how)) {
    return SampleGrid(grid, object.how, read);
  }
  const auto lower = static_cast<size_t>(level);
  const size_t upper = std::min(lower + 1, object.levels.size() - 1);
  const float fraction = std::round((level - std::floor(level)) * 256.0f) / 256.0f;
  const auto a = std::bit_cast<Texel>(SampleGrid(GridOf(*object.levels[lower]), object.how, read));
  const auto b = std::bit_cast<Texel>(SampleGrid(GridOf(*object.levels[upper]), object.how, read));
  Texel mixed;
  for (size_t i = 0; i < 4; ++i) mixed[i] = a[i] * (1 - fraction) + b[i] * fraction;
  return std::bit_cast<RawTexel>(mixed);
}

// What an object reads may have been freed after it was made.
bool IsThere(const AddressSpace& memory, const TextureObject& object) {
  for (const ArrayRef& level : object.levels) {
    if (!memory.Contains(level->memory->base, level->memory->bytes, Access::kRead)) return false;
  }
  if (!object.levels.empty()) return true;
  const auto& linear = object.resource.res.linear;
  const auto& plane = object.resource.res.pitch2D;
  if (object.resource.resType == CU_RESOURCE_TYPE_LINEAR)
    return memory.Contains(linear.devPtr, linear.sizeInBytes, Access::kRead);
  const size_t row = plane.width * ElementBytes(plane.format, plane.numChannels);
  return memory.Contains(plane.devPtr, plane.pitchInBytes * (plane.height - 1) + row, Access::kRead);
}

CUresult Describe(CUDA_RESOURCE_DESC* resource, uint64_t handle, bool surface) {
  TextureRef object = Find(handle, surface);
  if (resource == nullptr || object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *resource = object->resource;
  return CUDA_SUCCESS;
}

}  // namespace

bool ReadTextureObject(const AddressSpace& memory, const TextureRead& read, uint32_t* texel) {
  TextureRef object = Find(read.texture, false);
  if (object == nullptr || !IsThere(memory, *object)) return false;
  RawTexel raw{};
  if (!object->levels.empty()) {
    raw = SampleLevels(*object, read);
  } else {
    const TexelGrid grid = GridOf(object->resource);
    // Beyond the end of linear memory everything is zero.
    const bool linear = object->resource.resType == CU_RESOURCE_TYPE_LINEAR;
    const bool outside =
        linear && (!read.integers || read.index[0] < 0 || static_cast<size_t>(read.index[0]) >= grid.width);
    if (!outside) raw = SampleGrid(grid, object->how, read);
  }
  std::copy(raw.begin(), raw.end(), texel);
  return true;
}

std::byte* FindInSurfaceObject(const AddressSpace& memory, const SurfaceAccess& access) {
  TextureRef object = Find(access.surface, true);
  if (object == nullptr || !IsThere(memory, *object)) return nullptr;
  const Array& array = *object->levels[0];
  const int64_t x = access.index[0], y = access.dimensions > 1 ? access.index[1] : 0;
  const int64_t z = access.layered          ? static_cast<int64_t>(access.layer)
                    : access.dimensions > 2 ? access.index[2]
                                            : 0;
  const bool inside = x >= 0 && static_cast<size_t>(x) + access.bytes <= array.RowBytes() && y >= 0 &&
                      static_cast<size_t>(y) < array.Rows() && z >= 0 &&
                      static_cast<size_t>(z) < array.Slices() && x % access.bytes == 0;
  if (!inside) return nullptr;
  return array.data() + static_cast<size_t>(z) * array.SliceBytes() +
         static_cast<size_t>(y) * array.RowBytes() + x;
}

CUresult MakeTextureObject(const ContextRef& context, const CUDA_RESOURCE_DESC& resource,
                           const CUDA_TEXTURE_DESC* how, uint64_t* handle) {
  auto object = std::make_shared<TextureObject>();
  if (CUresult result = Hold(resource, object.get()); result != CUDA_SUCCESS) return result;
  object->surface = how == nullptr;
  if (how != nullptr) object->how = *how;
  object->context = context;
  *handle = Add(object);
  return CUDA_SUCCESS;
}

void DropTextureObject(uint64_t handle) {
  Objects& all = All();
  std::unique_lock lock(all.mutex);
  all.objects.erase(handle);
}

void DestroyTexturesOf(Context& context) {
  Objects& all = All();
  std::unique_lock lock(all.mutex);
  std::erase_if(all.objects,
                [&](const auto& entry) { return entry.second->context.lock().get() == &context; });
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuTexObjectCreate(CUtexObject* pTexObject, const CUDA_RESOURCE_DESC* pResDesc,
                           const CUDA_TEXTURE_DESC* pTexDesc, const CUDA_RESOURCE_VIEW_DESC* pResViewDesc) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pTexObject == nullptr || pResDesc == nullptr || pTexDesc == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto object = std::make_shared<TextureObject>();
    if (CUresult result = Hold(*pResDesc, object.get()); result != CUDA_SUCCESS) return result;
    if (pResViewDesc != nullptr && object->levels.empty()) return CUDA_ERROR_INVALID_VALUE;
    if (pTexDesc->filterMode > CU_TR_FILTER_MODE_LINEAR) return CUDA_ERROR_INVALID_VALUE;
    for (CUaddress_mode mode : pTexDesc->addressMode) {
      if (mode > CU_TR_ADDRESS_MODE_BORDER) return CUDA_ERROR_INVALID_VALUE;
    }
    object->how = *pTexDesc;
    if (pResViewDesc != nullptr) object->view = *pResViewDesc;
    object->context = context;
    *pTexObject = Add(object);
    return CUDA_SUCCESS;
  });
}

CUresult cuTexObjectDestroy(CUtexObject texObject) {
  return InContext(__func__, [&](const ContextRef&) { return Remove(texObject, false); });
}

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* pResDesc, CUtexObject texObject) {
  return InContext(__func__, [&](const ContextRef&) { return Describe(pResDesc, texObject, false); });
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* pTexDesc, CUtexObject texObject) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    TextureRef object = Find(texObject, false);
    if (pTexDesc == nullptr || object == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pTexDesc = object->how;
    std::fill_n(pTexDesc->borderColor, 4, 0.0f);  // as driver 580
    return CUDA_SUCCESS;
  });
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* pResViewDesc, CUtexObject texObject) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    TextureRef object = Find(texObject, false);
    if (pResViewDesc == nullptr || object == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pResViewDesc = object->view;
    return CUDA_SUCCESS;
  });
}

CUresult cuSurfObjectCreate(CUsurfObject* pSurfObject, const CUDA_RESOURCE_DESC* pResDesc) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pSurfObject == nullptr || pResDesc == nullptr || pResDesc->resType != CU_RESOURCE_TYPE_ARRAY) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto object = std::make_shared<TextureObject>();
    if (CUresult result = Hold(*pResDesc, object.get()); result != CUDA_SUCCESS) return result;
    if ((object->levels[0]->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST) == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    object->surface = true;
    object->context = context;
    *pSurfObject = Add(object);
    return CUDA_SUCCESS;
  });
}

CUresult cuSurfObjectDestroy(CUsurfObject surfObject) {
  return InContext(__func__, [&](const ContextRef&) { return Remove(surfObject, true); });
}

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* pResDesc, CUsurfObject surfObject) {
  return InContext(__func__, [&](const ContextRef&) { return Describe(pResDesc, surfObject, true); });
}

}  // extern "C"
