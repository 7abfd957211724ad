// SPDX-License-Identifier: Apache-2.0
// Tensor maps: encoded here, returned as bytes.
#include <cstring>

#include "host_backend/session.h"

namespace causeway::host {

// Encoding reads nothing but the values below; the address is checked by the driver when it is used.
CUresult Serve_cuTensorMapEncodeTiled(Session&, Request& request) {
  const auto body = request.in.Get<TensorMapBody>();
  if (!request.in.ok() || body.rank > 5) return CUDA_ERROR_INVALID_VALUE;
  if (TheDriver().cuTensorMapEncodeTiled == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUtensorMap map{};
  const CUresult result = TheDriver().cuTensorMapEncodeTiled(
      &map, static_cast<CUtensorMapDataType>(body.data_type), body.rank,
      reinterpret_cast<void*>(body.address), body.dimensions, body.strides, body.box, body.element_strides,
      static_cast<CUtensorMapInterleave>(body.interleave), static_cast<CUtensorMapSwizzle>(body.swizzle),
      static_cast<CUtensorMapL2promotion>(body.promotion), static_cast<CUtensorMapFloatOOBfill>(body.fill));
  request.out.Put(map);
  return result != CUDA_SUCCESS ? result : request.out.error();
}

CUresult Serve_cuTensorMapEncodeIm2col(Session&, Request& request) {
  const auto body = request.in.Get<TensorMapBody>();
  if (!request.in.ok() || body.rank > 5) return CUDA_ERROR_INVALID_VALUE;
  if (TheDriver().cuTensorMapEncodeIm2col == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUtensorMap map{};
  const CUresult result = TheDriver().cuTensorMapEncodeIm2col(
      &map, static_cast<CUtensorMapDataType>(body.data_type), body.rank,
      reinterpret_cast<void*>(body.address), body.dimensions, body.strides, body.lower_corner,
      body.upper_corner, body.channels_per_pixel, body.pixels_per_column, body.element_strides,
      static_cast<CUtensorMapInterleave>(body.interleave), static_cast<CUtensorMapSwizzle>(body.swizzle),
      static_cast<CUtensorMapL2promotion>(body.promotion), static_cast<CUtensorMapFloatOOBfill>(body.fill));
  request.out.Put(map);
  return result != CUDA_SUCCESS ? result : request.out.error();
}

CUresult Serve_cuTensorMapEncodeIm2colWide(Session&, Request& request) {
  const auto body = request.in.Get<TensorMapBody>();
  if (!request.in.ok() || body.rank > 5) return CUDA_ERROR_INVALID_VALUE;
  if (TheDriver().cuTensorMapEncodeIm2colWide == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUtensorMap map{};
  const CUresult result = TheDriver().cuTensorMapEncodeIm2colWide(
      &map, static_cast<CUtensorMapDataType>(body.data_type), body.rank,
      reinterpret_cast<void*>(body.address), body.dimensions, body.strides, body.lower_corner[0],
      body.upper_corner[0], body.channels_per_pixel, body.pixels_per_column, body.element_strides,
      static_cast<CUtensorMapInterleave>(body.interleave),
      static_cast<CUtensorMapIm2ColWideMode>(body.wide_mode), static_cast<CUtensorMapSwizzle>(body.swizzle),
      static_cast<CUtensorMapL2promotion>(body.promotion), static_cast<CUtensorMapFloatOOBfill>(body.fill));
  request.out.Put(map);
  return result != CUDA_SUCCESS ? result : request.out.error();
}

// The driver changes the address inside 128 bytes that only the GPU reads.
CUresult Serve_cuTensorMapReplaceAddress(Session&, Request& request) {
  const auto body = request.in.Get<TensorMapAddressBody>();
  if (!request.in.ok()) return request.in.error();
  if (TheDriver().cuTensorMapReplaceAddress == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUtensorMap map;
  std::memcpy(&map, body.map, sizeof map);
  const CUresult result = TheDriver().cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(body.address));
  request.out.Put(map);
  return result != CUDA_SUCCESS ? result : request.out.error();
}

}  // namespace causeway::host
