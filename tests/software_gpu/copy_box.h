// SPDX-License-Identifier: Apache-2.0
// Two- and three-dimensional copies between linear memories and arrays.
#pragma once

#include "tests/software_gpu/array.h"
#include "tests/software_gpu/graph.h"

namespace causeway::software_gpu {

struct BoxSide {
  uint64_t first = 0;  // address of the box's first byte
  size_t row_pitch = 0;
  size_t slice_pitch = 0;
  size_t extent = 0;  // bytes from the first to the last
  bool pageable = false;
  bool device = true;  // its memory; managed memory too
  bool host = false;
  ArrayRef array;  // kept for the copy's time; null for linear memory
};

struct BoxCopy {
  BoxSide to;
  BoxSide from;
  size_t row_bytes = 0;
  size_t rows = 0;
  size_t slices = 0;
  bool IsEmpty() const { return row_bytes == 0 || rows == 0 || slices == 0; }
};

// Translates and checks the caller's description.
CUresult DescribeBox(const CUDA_MEMCPY3D& copy, BoxCopy* box);

// The calls' body: checks, then copies on the stream.
CUresult CopyBox(const ContextRef& context, const CUDA_MEMCPY3D& copy, bool asynchronous, CUstream handle);

// For graph memcpy nodes: DescribeBox and the operation that performs it.
CUresult MakeBoxCopyOperation(const CUDA_MEMCPY3D& copy, Operation* operation);

}  // namespace causeway::software_gpu
