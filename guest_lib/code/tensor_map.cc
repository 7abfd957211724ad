// SPDX-License-Identifier: Apache-2.0
// Tensor maps: 128 bytes that the host's driver encodes and kernels read.
#include <cstring>

#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

// What all three kinds have.
CUresult Fill(TensorMapBody* body, CUtensorMapDataType type, cuuint32_t rank, void* address,
              const cuuint64_t* dimensions, const cuuint64_t* strides, const cuuint32_t* element_strides,
              CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
              CUtensorMapFloatOOBfill fill) {
  if (rank < 1 || rank > 5 || dimensions == nullptr || element_strides == nullptr ||
      (rank > 1 && strides == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  body->data_type = type;
  body->rank = rank;
  body->address = reinterpret_cast<uint64_t>(address);
  for (cuuint32_t i = 0; i < rank; ++i) {
    body->dimensions[i] = dimensions[i];
    body->element_strides[i] = element_strides[i];
    if (i + 1 < rank) body->strides[i] = strides[i];
  }
  body->interleave = interleave;
  body->swizzle = swizzle;
  body->promotion = promotion;
  body->fill = fill;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dimensions, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if (const CUresult result = NeedContext()) return result;
  TensorMapBody body{};
  if (map == nullptr || box == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = Fill(&body, type, rank, address, dimensions, strides, element_strides,
                                   interleave, swizzle, promotion, fill))
    return result;
  std::memcpy(body.box, box, rank * sizeof *box);
  return AskHost(Op::cuTensorMapEncodeTiled, body, map);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                 const cuuint64_t* dimensions, const cuuint64_t* strides, const int* lower,
                                 const int* upper, cuuint32_t channels, cuuint32_t pixels,
                                 const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                 CUtensorMapFloatOOBfill fill) {
  if (const CUresult result = NeedContext()) return result;
  TensorMapBody body{};
  if (map == nullptr || lower == nullptr || upper == nullptr || rank < 3) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = Fill(&body, type, rank, address, dimensions, strides, element_strides,
                                   interleave, swizzle, promotion, fill))
    return result;
  std::memcpy(body.lower_corner, lower, (rank - 2) * sizeof *lower);
  std::memcpy(body.upper_corner, upper, (rank - 2) * sizeof *upper);
  body.channels_per_pixel = channels;
  body.pixels_per_column = pixels;
  return AskHost(Op::cuTensorMapEncodeIm2col, body, map);
}

CUresult cuTensorMapEncodeIm2colWide(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                     void* address, const cuuint64_t* dimensions, const cuuint64_t* strides,
                                     int lower, int upper, cuuint32_t channels, cuuint32_t pixels,
                                     const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                     CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle,
                                     CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if (const CUresult result = NeedContext()) return result;
  TensorMapBody body{};
  if (map == nullptr || rank < 3) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = Fill(&body, type, rank, address, dimensions, strides, element_strides,
                                   interleave, swizzle, promotion, fill))
    return result;
  body.lower_corner[0] = lower;
  body.upper_corner[0] = upper;
  body.channels_per_pixel = channels;
  body.pixels_per_column = pixels;
  body.wide_mode = mode;
  return AskHost(Op::cuTensorMapEncodeIm2colWide, body, map);
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  if (map == nullptr) return CUDA_ERROR_INVALID_VALUE;
  TensorMapAddressBody body{};
  std::memcpy(body.map, map, sizeof *map);
  body.address = reinterpret_cast<uint64_t>(address);
  return AskHost(Op::cuTensorMapReplaceAddress, body, map);
}

}  // extern "C"
