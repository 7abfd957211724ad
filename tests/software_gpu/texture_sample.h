// SPDX-License-Identifier: Apache-2.0
// Reading texels: formats, what lies beyond the edges, and filters.
#pragma once

#include <array>

#include "tests/software_gpu/driver.h"
#include "tests/software_gpu/interpreter.h"

namespace causeway::software_gpu {

// One level of what a texture reads, rows of texels in memory.
struct TexelGrid {
  const std::byte* data = nullptr;
  size_t width = 0, height = 1, depth = 1;  // of one layer
  size_t layers = 1;
  size_t row_bytes = 0, slice_bytes = 0;  // of a slice or a layer
  CUarray_format format = CU_AD_FORMAT_FLOAT;
  unsigned channels = 1;
};

using Texel = std::array<float, 4>;
using RawTexel = std::array<uint32_t, 4>;

// Floats' bits, or integers where the texture does not promote.
RawTexel SampleGrid(const TexelGrid& grid, const CUDA_TEXTURE_DESC& how, const TextureRead& read);
// Whether its reads give integers.
bool ReadsIntegers(const TexelGrid& grid, const CUDA_TEXTURE_DESC& how);

}  // namespace causeway::software_gpu
