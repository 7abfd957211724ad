// SPDX-License-Identifier: Apache-2.0
// Batches of copies: one copy after the other on the batch's stream, one of the orders that a batch allows.
#include <cstdint>

#include "guest_lib/copy/copy.h"
#include "guest_lib/memory/memory.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

bool IsLegacyStream(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY;
}

bool IsAccessOrder(CUmemcpySrcAccessOrder order) {
  return order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
         order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

// A pageable source is read while the call runs, or where stream order is asked for, behind earlier work.
CUresult AwaitSource(uint64_t source, CUmemcpySrcAccessOrder order, CUstream stream) {
  if (order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM) NameBehindFunctions(source);
  const bool waits =
      order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && KindOfPointer(source) == PointerKind::kPageable;
  return waits ? AwaitCopied(stream) : CUDA_SUCCESS;
}

// And after a source that must not be read once the call has returned.
CUresult AwaitCopy(uint64_t source, CUmemcpySrcAccessOrder order, CUstream stream) {
  const PointerKind kind = KindOfPointer(source);
  const bool waits = order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL &&
                     (kind == PointerKind::kPinned || kind == PointerKind::kManaged);
  return waits ? AwaitCopied(stream) : CUDA_SUCCESS;
}

struct Batch {
  const CUdeviceptr* to;
  const CUdeviceptr* from;
  const size_t* bytes;
  size_t count;
  const CUmemcpyAttributes* attributes;
  const size_t* first;  // of each attribute
  size_t attribute_count;
};

// What the driver looks at in this order: the stream, whether its capture is broken, the rest that is the same for all copies,
// whether the thread has a context, and last whether the stream captures.
CUresult CheckBatchStream(CUstream stream) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (IsLegacyStream(stream)) return CUDA_ERROR_INVALID_VALUE;
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  return CaptureRefusal(CaptureRule::kInStream, stream);
}

CUresult CheckBatchContext(CUstream stream) {
  if (NeedContext() != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;  // of a batch, not INVALID_CONTEXT
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!AnyCapture() || ResolvedStream(stream).error() != CUDA_SUCCESS) return CUDA_SUCCESS;
  if (const CUresult asked = cuStreamIsCapturing(stream, &status)) return asked;
  return status != CU_STREAM_CAPTURE_STATUS_NONE ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult CheckBatch(const Batch& batch, CUstream stream) {
  if (const CUresult result = CheckBatchStream(stream)) return result;
  if (batch.to == nullptr || batch.from == nullptr || batch.bytes == nullptr || batch.count == 0 ||
      batch.attributes == nullptr || batch.first == nullptr || batch.attribute_count == 0 ||
      batch.attribute_count > batch.count) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < batch.attribute_count; ++i) {
    if (i == 0 ? batch.first[i] != 0 : batch.first[i] <= batch.first[i - 1]) return CUDA_ERROR_INVALID_VALUE;
    if (batch.first[i] >= batch.count || !IsAccessOrder(batch.attributes[i].srcAccessOrder))
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CheckBatchContext(stream);
}

CUresult CopyBatch(const Batch& batch, CUstream stream, size_t* failed) {
  if (failed != nullptr) *failed = SIZE_MAX;
  if (const CUresult result = CheckBatch(batch, stream)) return result;
  size_t attribute = 0;
  for (size_t i = 0; i < batch.count; ++i) {
    if (attribute + 1 < batch.attribute_count && batch.first[attribute + 1] == i) ++attribute;
    const CUmemcpySrcAccessOrder order = batch.attributes[attribute].srcAccessOrder;
    CUresult result = batch.bytes[i] == 0 || batch.to[i] == 0 || batch.from[i] == 0
                          ? CUDA_ERROR_INVALID_VALUE
                          : AwaitSource(batch.from[i], order, stream);
    if (result == CUDA_SUCCESS)
      result = CopyUnified(batch.to[i], batch.from[i], batch.bytes[i], stream, CopyForm::kAsynchronous);
    if (result == CUDA_SUCCESS) result = AwaitCopy(batch.from[i], order, stream);
    if (result == CUDA_SUCCESS) continue;
    if (failed != nullptr) *failed = i;
    return result;
  }
  return CUDA_SUCCESS;
}

// ---- boxes ----

// Bytes of one element; 0 if the array is none.
CUresult ElementBytes(CUarray array, size_t* bytes) {
  CUDA_ARRAY3D_DESCRIPTOR description{};
  if (const CUresult result = Wait<Op::cuArray3DGetDescriptor_v2>(&description, array)) return result;
  switch (description.Format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      *bytes = description.NumChannels;
      return CUDA_SUCCESS;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      *bytes = 2 * size_t{description.NumChannels};
      return CUDA_SUCCESS;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      *bytes = 4 * size_t{description.NumChannels};
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;  // block-compressed and planar formats
  }
}

bool IsArray(const CUmemcpy3DOperand& operand) {
  return operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
}

// One side of a box. *address: where linear memory begins.
CUresult Place(const CUmemcpy3DOperand& operand, const CUextent3D& extent, size_t element, CUDA_MEMCPY3D* box,
               bool source) {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  if (IsArray(operand)) {
    type = CU_MEMORYTYPE_ARRAY;
    const auto& array = operand.op.array;
    (source ? box->srcArray : box->dstArray) = array.array;
    (source ? box->srcXInBytes : box->dstXInBytes) = array.offset.x * element;
    (source ? box->srcY : box->dstY) = array.offset.y;
    (source ? box->srcZ : box->dstZ) = array.offset.z;
  } else if (operand.type == CU_MEMCPY_OPERAND_TYPE_POINTER) {
    const auto& linear = operand.op.ptr;
    if (linear.ptr == 0 || (linear.rowLength != 0 && linear.rowLength < extent.width) ||
        (linear.layerHeight != 0 && linear.layerHeight < extent.height)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    (source ? box->srcDevice : box->dstDevice) = linear.ptr;
    (source ? box->srcPitch : box->dstPitch) =
        (linear.rowLength != 0 ? linear.rowLength : extent.width) * element;
    (source ? box->srcHeight : box->dstHeight) = linear.layerHeight != 0 ? linear.layerHeight : extent.height;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  (source ? box->srcMemoryType : box->dstMemoryType) = type;
  return CUDA_SUCCESS;
}

bool IsWrong(const CUDA_MEMCPY3D_BATCH_OP& op) {
  const CUextent3D& extent = op.extent;
  return extent.width == 0 || extent.height == 0 || extent.depth == 0 || !IsAccessOrder(op.srcAccessOrder);
}

CUresult CopyOne(const CUDA_MEMCPY3D_BATCH_OP& op, CUstream stream) {
  const CUextent3D& extent = op.extent;
  size_t from_element = 0, to_element = 0;
  if (IsArray(op.src)) {
    if (const CUresult result = ElementBytes(op.src.op.array.array, &from_element)) return result;
  }
  if (IsArray(op.dst)) {
    if (const CUresult result = ElementBytes(op.dst.op.array.array, &to_element)) return result;
  }
  if (from_element != 0 && to_element != 0 && from_element != to_element) return CUDA_ERROR_INVALID_VALUE;
  size_t element = from_element != 0 ? from_element : to_element;
  if (element == 0) element = 1;
  CUDA_MEMCPY3D box{};
  box.WidthInBytes = extent.width * element;
  box.Height = extent.height;
  box.Depth = extent.depth;
  if (const CUresult result = Place(op.src, extent, element, &box, true)) return result;
  if (const CUresult result = Place(op.dst, extent, element, &box, false)) return result;
  const uint64_t source = IsArray(op.src) ? 0 : op.src.op.ptr.ptr;
  if (source != 0) {
    if (const CUresult result = AwaitSource(source, op.srcAccessOrder, stream)) return result;
  }
  const CUresult result = CopyBox(box, stream, CopyForm::kAsynchronous);
  return result == CUDA_SUCCESS && source != 0 ? AwaitCopy(source, op.srcAccessOrder, stream) : result;
}

CUresult CopyBoxes(size_t count, const CUDA_MEMCPY3D_BATCH_OP* ops, size_t* failed, unsigned long long flags,
                   CUstream stream) {
  if (failed != nullptr) *failed = SIZE_MAX;
  if (const CUresult result = CheckBatchStream(stream)) return result;
  if (count == 0 || ops == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (!IsWrong(ops[i])) continue;
    if (failed != nullptr) *failed = i;
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult result = CheckBatchContext(stream)) return result;
  for (size_t i = 0; i < count; ++i) {
    const CUresult result = CopyOne(ops[i], stream);
    if (result == CUDA_SUCCESS) continue;
    if (failed != nullptr) *failed = i;
    return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                            CUmemcpyAttributes* attributes, size_t* first, size_t attribute_count,
                            size_t* failed, CUstream stream) {
  return CopyBatch({to, from, bytes, count, attributes, first, attribute_count}, stream, failed);
}
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                               CUmemcpyAttributes* attributes, size_t* first, size_t attribute_count,
                               CUstream stream) {
  return CopyBatch({to, from, bytes, count, attributes, first, attribute_count}, stream, nullptr);
}
CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP* ops, size_t* failed,
                              unsigned long long flags, CUstream stream) {
  return CopyBoxes(count, ops, failed, flags, stream);
}
CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP* ops, unsigned long long flags,
                                 CUstream stream) {
  return CopyBoxes(count, ops, nullptr, flags, stream);
}

}  // extern "C"
