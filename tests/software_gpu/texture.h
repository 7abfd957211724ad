// SPDX-License-Identifier: Apache-2.0
// Texture and surface objects as kernels use them.
#pragma once

#include "tests/software_gpu/interpreter.h"

namespace causeway::software_gpu {

struct Context;

// False when the object is not alive.
bool ReadTextureObject(const TextureRead& read, uint32_t* texel);

// Null when the object is not alive or the element lies outside.
std::byte* FindInSurfaceObject(const SurfaceAccess& access);

void DestroyTexturesOf(Context& context);

}  // namespace causeway::software_gpu
