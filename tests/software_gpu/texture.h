// SPDX-License-Identifier: Apache-2.0
// Texture and surface objects as kernels use them.
#pragma once

#include "tests/software_gpu/driver.h"
#include "tests/software_gpu/interpreter.h"

namespace causeway::software_gpu {

// False when the object or its memory is not alive.
bool ReadTextureObject(const AddressSpace& memory, const TextureRead& read, uint32_t* texel);

// Null when the object or its memory is not alive, or the element lies outside.
std::byte* FindInSurfaceObject(const AddressSpace& memory, const SurfaceAccess& access);

void DestroyTexturesOf(Context& context);

// For references: a texture, or without `how` a surface, and its end (also of 0).
CUresult MakeTextureObject(const ContextRef& context, const CUDA_RESOURCE_DESC& resource,
                           const CUDA_TEXTURE_DESC* how, uint64_t* handle);
void DropTextureObject(uint64_t handle);

}  // namespace causeway::software_gpu
