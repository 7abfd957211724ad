// SPDX-License-Identifier: Apache-2.0
// Texture and surface references. A reference of a module is a variable there that holds the handle of a
// texture or surface object; whatever is set makes a new object. On real hardware a launch takes what is set
// at its time, so a change waits for the launches before it.
#include <algorithm>

#include "tests/software_gpu/array.h"
#include "tests/software_gpu/handles.h"
#include "tests/software_gpu/module.h"
#include "tests/software_gpu/stream.h"
#include "tests/software_gpu/texture.h"

namespace causeway::software_gpu {
namespace {

struct Reference {
  CUmodule module = nullptr;  // null: made by cuTexRefCreate
  uint64_t* place = nullptr;  // the variable, in the module
  std::string name;
  bool surface = false;
  bool bound = false;
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC how{};
  CUarray_format format = CU_AD_FORMAT_FLOAT;
  int channels = 1;
  std::weak_ptr<Context> context;
};
using ReferenceRef = std::shared_ptr<Reference>;

// Both kinds share the registry; the handles differ in C type only.
Registry<CUtexref, Reference>& References() {
  static auto* references = new Registry<CUtexref, Reference>;
  return *references;
}

ReferenceRef Find(CUtexref handle, bool surface) {
  ReferenceRef reference = References().Find(handle);
  if (reference == nullptr || reference->surface != surface) return nullptr;
  const bool dead = reference->module != nullptr && FindModule(reference->module) == nullptr;
  return dead ? nullptr : reference;
}
CUtexref AsTexture(CUsurfref surface) {
  return reinterpret_cast<CUtexref>(surface);
}

template <class Body>
CUresult WithReference(const char* function, CUtexref handle, bool surface, const Body& body) {
  return InContext(function, [&](const ContextRef&) -> CUresult {
    ReferenceRef reference = Find(handle, surface);
    return reference == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*reference);
  });
}
template <class T, class Body>
CUresult Get(const char* function, T* to, CUtexref handle, const Body& body) {
  return WithReference(function, handle, false, [&](Reference& reference) -> CUresult {
    if (to == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *to = body(reference);
    return CUDA_SUCCESS;
  });
}

// The variable gets an object of what is set now.
CUresult Apply(Reference& reference) {
  if (reference.place == nullptr || !reference.bound) return CUDA_SUCCESS;
  SynchronizeDevice();
  uint64_t made = 0;
  CUresult result = MakeTextureObject(reference.context.lock(), reference.resource,
                                      reference.surface ? nullptr : &reference.how, &made);
  if (result != CUDA_SUCCESS) return result;
  DropTextureObject(*reference.place);
  *reference.place = made;
  return CUDA_SUCCESS;
}
template <class Body>
CUresult Set(const char* function, CUtexref handle, const Body& body) {
  return WithReference(function, handle, false, [&](Reference& reference) -> CUresult {
    if (CUresult result = body(reference); result != CUDA_SUCCESS) return result;
    return Apply(reference);
  });
}
CUresult Bind(Reference& reference, const CUDA_RESOURCE_DESC& resource) {
  reference.resource = resource;
  reference.bound = true;
  return CUDA_SUCCESS;
}

CUresult OfModule(const ContextRef& context, CUmodule hmod, const char* name, bool surface,
                  CUtexref* handle) {
  if (handle == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ModuleRef module = FindModule(hmod);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  CUtexref known = nullptr;
  References().ForEachHandle([&](CUtexref each, const ReferenceRef& reference) {
    if (reference->module == hmod && reference->name == name && reference->surface == surface) known = each;
  });
  CUdeviceptr place = 0;
  size_t bytes = 0;
  CUresult result = FindGlobal(*module, name, &place, &bytes);
  if (result != CUDA_SUCCESS || bytes != sizeof(uint64_t)) return CUDA_ERROR_NOT_FOUND;
  if (known == nullptr) {
    auto reference = std::make_shared<Reference>();
    reference->module = hmod;
    reference->place = reinterpret_cast<uint64_t*>(place);
    reference->name = name;
    reference->surface = surface;
    reference->context = context;
    known = References().Add(reference);
  }
  *handle = known;
  return CUDA_SUCCESS;
}

CUresult SetPitched(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR* desc, CUdeviceptr address, size_t pitch) {
  return Set("cuTexRefSetAddress2D_v3", handle, [&](Reference& reference) -> CUresult {
    if (desc == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_PITCH2D;
    resource.res.pitch2D = {address, desc->Format, desc->NumChannels, desc->Width, desc->Height, pitch};
    return Bind(reference, resource);
  });
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuModuleGetTexRef(CUtexref* pTexRef, CUmodule hmod, const char* name) {
  return InContext(__func__,
                   [&](const ContextRef& context) { return OfModule(context, hmod, name, false, pTexRef); });
}
CUresult cuModuleGetSurfRef(CUsurfref* pSurfRef, CUmodule hmod, const char* name) {
  return InContext(__func__, [&](const ContextRef& context) {
    return OfModule(context, hmod, name, true, reinterpret_cast<CUtexref*>(pSurfRef));
  });
}
CUresult cuSurfRefSetArray(CUsurfref hSurfRef, CUarray hArray, unsigned int Flags) {
  return WithReference(__func__, AsTexture(hSurfRef), true, [&](Reference& reference) -> CUresult {
    if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
    CUDA_RESOURCE_DESC resource{};
    resource.res.array.hArray = hArray;
    Bind(reference, resource);
    return Apply(reference);
  });
}
CUresult cuSurfRefGetArray(CUarray* phArray, CUsurfref hSurfRef) {
  return WithReference(__func__, AsTexture(hSurfRef), true, [&](Reference& reference) -> CUresult {
    if (phArray == nullptr || !reference.bound) return CUDA_ERROR_INVALID_VALUE;
    *phArray = reference.resource.res.array.hArray;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefCreate(CUtexref* pTexRef) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pTexRef == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto reference = std::make_shared<Reference>();
    reference->context = context;
    *pTexRef = References().Add(reference);
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefDestroy(CUtexref hTexRef) {
  return WithReference(__func__, hTexRef, false, [&](Reference&) {
    References().Remove(hTexRef);
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetArray(CUtexref hTexRef, CUarray hArray, unsigned int Flags) {
  return Set(__func__, hTexRef, [&](Reference& reference) -> CUresult {
    if (Flags != CU_TRSA_OVERRIDE_FORMAT) return CUDA_ERROR_INVALID_VALUE;
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = hArray;
    return Bind(reference, resource);
  });
}
CUresult cuTexRefSetMipmappedArray(CUtexref hTexRef, CUmipmappedArray hMipmappedArray, unsigned int Flags) {
  return Set(__func__, hTexRef, [&](Reference& reference) -> CUresult {
    if (Flags != CU_TRSA_OVERRIDE_FORMAT) return CUDA_ERROR_INVALID_VALUE;
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    resource.res.mipmap.hMipmappedArray = hMipmappedArray;
    return Bind(reference, resource);
  });
}
CUresult cuTexRefSetAddress_v2(size_t* ByteOffset, CUtexref hTexRef, CUdeviceptr dptr, size_t bytes) {
  return Set(__func__, hTexRef, [&](Reference& reference) -> CUresult {
    if (ByteOffset != nullptr) *ByteOffset = 0;
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_LINEAR;
    resource.res.linear = {dptr, reference.format, static_cast<unsigned>(reference.channels), bytes};
    return Bind(reference, resource);
  });
}
CUresult cuTexRefSetAddress2D_v2(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR* desc, CUdeviceptr dptr,
                                 size_t Pitch) {
  return SetPitched(hTexRef, desc, dptr, Pitch);
}
CUresult cuTexRefSetAddress2D_v3(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR* desc, CUdeviceptr dptr,
                                 size_t Pitch) {
  return SetPitched(hTexRef, desc, dptr, Pitch);
}
CUresult cuTexRefSetFormat(CUtexref hTexRef, CUarray_format fmt, int NumPackedComponents) {
  return Set(__func__, hTexRef, [&](Reference& reference) -> CUresult {
    const int n = NumPackedComponents;
    if ((n != 1 && n != 2 && n != 4) || ElementBytes(fmt, 1) == 0) return CUDA_ERROR_INVALID_VALUE;
    reference.format = fmt;
    reference.channels = n;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefSetAddressMode(CUtexref hTexRef, int dim, CUaddress_mode am) {
  return Set(__func__, hTexRef, [&](Reference& reference) -> CUresult {
    if (dim < 0 || dim > 2 || am > CU_TR_ADDRESS_MODE_BORDER) return CUDA_ERROR_INVALID_VALUE;
    reference.how.addressMode[dim] = am;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefSetFilterMode(CUtexref hTexRef, CUfilter_mode fm) {
  return Set(__func__, hTexRef, [&](Reference& reference) -> CUresult {
    if (fm > CU_TR_FILTER_MODE_LINEAR) return CUDA_ERROR_INVALID_VALUE;
    reference.how.filterMode = fm;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefSetMipmapFilterMode(CUtexref hTexRef, CUfilter_mode fm) {
  return Set(__func__, hTexRef, [&](Reference& reference) -> CUresult {
    if (fm > CU_TR_FILTER_MODE_LINEAR) return CUDA_ERROR_INVALID_VALUE;
    reference.how.mipmapFilterMode = fm;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefSetMipmapLevelBias(CUtexref hTexRef, float bias) {
  return Set(__func__, hTexRef, [&](Reference& reference) {
    reference.how.mipmapLevelBias = bias;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefSetMipmapLevelClamp(CUtexref hTexRef, float minMipmapLevelClamp, float maxMipmapLevelClamp) {
  return Set(__func__, hTexRef, [&](Reference& reference) {
    reference.how.minMipmapLevelClamp = minMipmapLevelClamp;
    reference.how.maxMipmapLevelClamp = maxMipmapLevelClamp;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefSetMaxAnisotropy(CUtexref hTexRef, unsigned int maxAniso) {
  return Set(__func__, hTexRef, [&](Reference& reference) {
    reference.how.maxAnisotropy = maxAniso;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefSetBorderColor(CUtexref hTexRef, float* pBorderColor) {
  return Set(__func__, hTexRef, [&](Reference& reference) -> CUresult {
    if (pBorderColor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::copy_n(pBorderColor, 4, reference.how.borderColor);
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefSetFlags(CUtexref hTexRef, unsigned int Flags) {
  return Set(__func__, hTexRef, [&](Reference& reference) {
    reference.how.flags = Flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefGetAddress_v2(CUdeviceptr* pdptr, CUtexref hTexRef) {
  return WithReference(__func__, hTexRef, false, [&](Reference& reference) -> CUresult {
    const bool linear = reference.bound && reference.resource.resType >= CU_RESOURCE_TYPE_LINEAR;
    if (pdptr == nullptr || !linear) return CUDA_ERROR_INVALID_VALUE;
    const bool plane = reference.resource.resType == CU_RESOURCE_TYPE_PITCH2D;
    *pdptr = plane ? reference.resource.res.pitch2D.devPtr : reference.resource.res.linear.devPtr;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefGetArray(CUarray* phArray, CUtexref hTexRef) {
  return WithReference(__func__, hTexRef, false, [&](Reference& reference) -> CUresult {
    const bool array = reference.bound && reference.resource.resType == CU_RESOURCE_TYPE_ARRAY;
    if (phArray == nullptr || !array) return CUDA_ERROR_INVALID_VALUE;
    *phArray = reference.resource.res.array.hArray;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefGetMipmappedArray(CUmipmappedArray* phMipmappedArray, CUtexref hTexRef) {
  return WithReference(__func__, hTexRef, false, [&](Reference& reference) -> CUresult {
    const bool array = reference.bound && reference.resource.resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    if (phMipmappedArray == nullptr || !array) return CUDA_ERROR_INVALID_VALUE;
    *phMipmappedArray = reference.resource.res.mipmap.hMipmappedArray;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefGetAddressMode(CUaddress_mode* pam, CUtexref hTexRef, int dim) {
  if (dim < 0 || dim > 2) return CUDA_ERROR_INVALID_VALUE;
  return Get(__func__, pam, hTexRef, [&](Reference& reference) { return reference.how.addressMode[dim]; });
}
CUresult cuTexRefGetFilterMode(CUfilter_mode* pfm, CUtexref hTexRef) {
  return Get(__func__, pfm, hTexRef, [](Reference& reference) { return reference.how.filterMode; });
}
CUresult cuTexRefGetFormat(CUarray_format* pFormat, int* pNumChannels, CUtexref hTexRef) {
  return WithReference(__func__, hTexRef, false, [&](Reference& reference) {
    if (pFormat != nullptr) *pFormat = reference.format;
    if (pNumChannels != nullptr) *pNumChannels = reference.channels;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefGetMipmapFilterMode(CUfilter_mode* pfm, CUtexref hTexRef) {
  return Get(__func__, pfm, hTexRef, [](Reference& reference) { return reference.how.mipmapFilterMode; });
}
CUresult cuTexRefGetMipmapLevelBias(float* pbias, CUtexref hTexRef) {
  return Get(__func__, pbias, hTexRef, [](Reference& reference) { return reference.how.mipmapLevelBias; });
}
CUresult cuTexRefGetMipmapLevelClamp(float* pminMipmapLevelClamp, float* pmaxMipmapLevelClamp,
                                     CUtexref hTexRef) {
  return WithReference(__func__, hTexRef, false, [&](Reference& reference) {
    if (pminMipmapLevelClamp != nullptr) *pminMipmapLevelClamp = reference.how.minMipmapLevelClamp;
    if (pmaxMipmapLevelClamp != nullptr) *pmaxMipmapLevelClamp = reference.how.maxMipmapLevelClamp;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefGetMaxAnisotropy(int* pmaxAniso, CUtexref hTexRef) {
  return Get(__func__, pmaxAniso, hTexRef,
             [](Reference& reference) { return static_cast<int>(reference.how.maxAnisotropy); });
}
CUresult cuTexRefGetBorderColor(float* pBorderColor, CUtexref hTexRef) {
  return WithReference(__func__, hTexRef, false, [&](Reference& reference) -> CUresult {
    if (pBorderColor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::copy_n(reference.how.borderColor, 4, pBorderColor);
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefGetFlags(unsigned int* pFlags, CUtexref hTexRef) {
  return Get(__func__, pFlags, hTexRef, [](Reference& reference) { return reference.how.flags; });
}

}  // extern "C"
