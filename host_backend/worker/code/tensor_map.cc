// SPDX-License-Identifier: Apache-2.0
// Tensor maps: encoded here, returned as bytes.
#include <cstring>
#include <iterator>

#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/protocol/known_values.h"

namespace causeway::host {
namespace {

// The enums of an encoding, as the driver gets them.
struct TensorMapForm {
  CUtensorMapDataType type;
  CUtensorMapInterleave interleave;
  CUtensorMapSwizzle swizzle;
  CUtensorMapL2promotion promotion;
  CUtensorMapFloatOOBfill fill;
};

CUresult TakeForm(const TensorMapBody& body, TensorMapForm* form) {
  if (body.rank < 1 || body.rank > std::size(body.dimensions)) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = TakeKnown(body.data_type, &form->type);
  if (result == CUDA_SUCCESS) result = TakeKnown(body.interleave, &form->interleave);
  if (result == CUDA_SUCCESS) result = TakeKnown(body.swizzle, &form->swizzle);
  if (result == CUDA_SUCCESS) result = TakeKnown(body.promotion, &form->promotion);
  return result == CUDA_SUCCESS ? TakeKnown(body.fill, &form->fill) : result;
}

// Answers with the map that `encode` makes of the message.
CUresult Encode(Request& request, auto encode) {
  const auto body = request.in.Get<TensorMapBody>();
  if (!request.in.ok()) return request.in.error();
  TensorMapForm form;
  if (const CUresult result = TakeForm(body, &form)) return result;
  CUtensorMap map{};
  const CUresult result = encode(&map, body, form);
  request.out.Put(map);
  return result != CUDA_SUCCESS ? result : request.out.error();
}

}  // namespace

// Encoding reads nothing but the values below; the address is checked by the driver when it is used.
CUresult Serve_cuTensorMapEncodeTiled(Session&, Request& request) {
  return Encode(request, [](CUtensorMap* map, const TensorMapBody& body, const TensorMapForm& form) {
    return TheDriver().cuTensorMapEncodeTiled(
        map, form.type, body.rank, reinterpret_cast<void*>(body.address), body.dimensions, body.strides,
        body.box, body.element_strides, form.interleave, form.swizzle, form.promotion, form.fill);
  });
}

CUresult Serve_cuTensorMapEncodeIm2col(Session&, Request& request) {
  return Encode(request, [](CUtensorMap* map, const TensorMapBody& body, const TensorMapForm& form) {
    return TheDriver().cuTensorMapEncodeIm2col(
        map, form.type, body.rank, reinterpret_cast<void*>(body.address), body.dimensions, body.strides,
        body.lower_corner, body.upper_corner, body.channels_per_pixel, body.pixels_per_column,
        body.element_strides, form.interleave, form.swizzle, form.promotion, form.fill);
  });
}

CUresult Serve_cuTensorMapEncodeIm2colWide(Session&, Request& request) {
  return Encode(request, [](CUtensorMap* map, const TensorMapBody& body, const TensorMapForm& form) {
    CUtensorMapIm2ColWideMode wide;
    if (const CUresult result = TakeKnown(body.wide_mode, &wide)) return result;
    return TheDriver().cuTensorMapEncodeIm2colWide(
        map, form.type, body.rank, reinterpret_cast<void*>(body.address), body.dimensions, body.strides,
        body.lower_corner[0], body.upper_corner[0], body.channels_per_pixel, body.pixels_per_column,
        body.element_strides, form.interleave, wide, form.swizzle, form.promotion, form.fill);
  });
}

// The driver changes the address inside 128 bytes that only the GPU reads.
CUresult Serve_cuTensorMapReplaceAddress(Session&, Request& request) {
  const auto body = request.in.Get<TensorMapAddressBody>();
  if (!request.in.ok()) return request.in.error();
  CUtensorMap map;
  std::memcpy(&map, body.map, sizeof map);
  const CUresult result = TheDriver().cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(body.address));
  request.out.Put(map);
  return result != CUDA_SUCCESS ? result : request.out.error();
}

}  // namespace causeway::host
