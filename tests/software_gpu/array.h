// SPDX-License-Identifier: Apache-2.0
// Arrays and mipmapped arrays: device memory with a shape, rows and slices tightly packed.
#pragma once

#include <memory>
#include <vector>

#include "tests/software_gpu/driver.h"
#include "tests/software_gpu/memory.h"

namespace causeway::software_gpu {

struct Array {
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  unsigned element_bytes = 0;
  AllocationRef memory;
  std::weak_ptr<Context> context;
  bool level = false;  // of a mipmapped array, which ends it

  size_t RowBytes() const { return descriptor.Width * element_bytes; }
  size_t Rows() const { return descriptor.Height != 0 ? descriptor.Height : 1; }
  size_t Slices() const { return descriptor.Depth != 0 ? descriptor.Depth : 1; }  // or layers
  size_t SliceBytes() const { return RowBytes() * Rows(); }
  std::byte* data() const { return static_cast<std::byte*>(memory->address()); }
};
using ArrayRef = std::shared_ptr<Array>;

struct MipmappedArray {
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  std::vector<CUarray> levels;
  std::weak_ptr<Context> context;
};
using MipmappedArrayRef = std::shared_ptr<MipmappedArray>;

// Null when the handle is not alive.
ArrayRef FindArray(CUarray handle);
MipmappedArrayRef FindMipmappedArray(CUmipmappedArray handle);
void DestroyArraysOf(Context& context);

// 0 for formats that are no plain numbers (planar, block-compressed, normalised).
unsigned ElementBytes(CUarray_format format, unsigned channels);

}  // namespace causeway::software_gpu
