// SPDX-License-Identifier: Apache-2.0
// What the tests of arrays, textures and surfaces share.
#pragma once

#include <cstring>
#include <numeric>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {

// NVIDIA's own library does not check every handle: a dead one may crash the process there. It exports more
// names than the API has.
inline bool OnNvidiaLibrary() {
  return Symbol("cudbgGetAPIVersion") != nullptr || Symbol("cuGLInit") != nullptr;
}

inline CUDA_ARRAY3D_DESCRIPTOR ArrayShape(size_t width, size_t height = 0, size_t depth = 0,
                                          CUarray_format format = CU_AD_FORMAT_FLOAT, unsigned channels = 1,
                                          unsigned flags = 0) {
  return {width, height, depth, format, channels, flags};
}

inline std::vector<float> Counting(size_t count, float first = 0) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// The whole of an array of floats, from or to tightly packed host memory.
inline CUDA_MEMCPY3D WholeArray(size_t width, size_t height, size_t depth) {
  CUDA_MEMCPY3D box{};
  box.WidthInBytes = width * sizeof(float);
  box.Height = height != 0 ? height : 1;
  box.Depth = depth != 0 ? depth : 1;
  box.srcPitch = box.dstPitch = box.WidthInBytes;
  box.srcHeight = box.dstHeight = box.Height;
  return box;
}
inline CUresult FillArray(CUarray array, const std::vector<float>& values, size_t width, size_t height = 0,
                          size_t depth = 0) {
  CUDA_MEMCPY3D box = WholeArray(width, height, depth);
  box.srcMemoryType = CU_MEMORYTYPE_HOST;
  box.srcHost = values.data();
  box.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  box.dstArray = array;
  return cuMemcpy3D(&box);
}
inline std::vector<float> ContentsOf(CUarray array, size_t width, size_t height = 0, size_t depth = 0) {
  CUDA_MEMCPY3D box = WholeArray(width, height, depth);
  std::vector<float> values(width * box.Height * box.Depth, -1.0f);
  box.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  box.srcArray = array;
  box.dstMemoryType = CU_MEMORYTYPE_HOST;
  box.dstHost = values.data();
  EXPECT_EQ(cuMemcpy3D(&box), CUDA_SUCCESS);
  return values;
}

}  // namespace causeway::driver_test
