// SPDX-License-Identifier: Apache-2.0
// Two- and three-dimensional copies. All become one CUDA_MEMCPY3D; a pageable side is packed into buffers, as
// many rows or slices at a time as fit.
#include <cstring>

#include "guest_lib/copy/copy.h"
#include "guest_lib/graph/graph_copy.h"
#include "guest_lib/memory/memory.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/staging/staged_copy.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

CUDA_MEMCPY3D Widen(const CUDA_MEMCPY2D& flat) {
  CUDA_MEMCPY3D box{};
  box.srcXInBytes = flat.srcXInBytes;
  box.srcY = flat.srcY;
  box.srcMemoryType = flat.srcMemoryType;
  box.srcHost = flat.srcHost;
  box.srcDevice = flat.srcDevice;
  box.srcArray = flat.srcArray;
  box.srcPitch = flat.srcPitch;
  box.srcHeight = flat.srcY + flat.Height;
  box.dstXInBytes = flat.dstXInBytes;
  box.dstY = flat.dstY;
  box.dstMemoryType = flat.dstMemoryType;
  box.dstHost = flat.dstHost;
  box.dstDevice = flat.dstDevice;
  box.dstArray = flat.dstArray;
  box.dstPitch = flat.dstPitch;
  box.dstHeight = flat.dstY + flat.Height;
  box.WidthInBytes = flat.WidthInBytes;
  box.Height = flat.Height;
  box.Depth = 1;
  return box;
}

// How a box travels, beside the box itself.
struct Way {
  CUstream stream;
  CopyForm form;
  CUcontext source = nullptr, destination = nullptr;  // of cuMemcpy3DPeer
};

CUresult FillBody(const CUDA_MEMCPY3D& box, const Way& way, const ResolvedStream& stream,
                  PackedSide packed_side, BoxBody* body) {
  Remote remote;
  Writer check{{}};
  body->box = box;
  body->source_array = box.srcMemoryType == CU_MEMORYTYPE_ARRAY ? remote.ToWire(box.srcArray, check) : 0;
  body->destination_array = box.dstMemoryType == CU_MEMORYTYPE_ARRAY ? remote.ToWire(box.dstArray, check) : 0;
  if (const CUresult error = stream.error()) check.Fail(error);
  body->stream = stream.wire();
  body->source_context = remote.ToWire(way.source, check);
  body->destination_context = remote.ToWire(way.destination, check);
  body->form = way.form;
  body->packed_side = packed_side;
  return check.error();
}

CUresult Send(const CUDA_MEMCPY3D& box, const Way& way, bool known) {
  BoxBody body{};
  const ResolvedStream stream(way.stream);
  if (const CUresult result = FillBody(box, way, stream, PackedSide::kNone, &body)) return result;
  const Submission submission{.stream = stream.object()};
  if (way.form == CopyForm::kAsynchronous && known) {
    PendingPost post(Op::cuMemcpy3D_v2, submission);
    post.writer().Put(body);
    return post.Finish();
  }
  const RelaxedCaptures relaxed;  // the host may wait where the driver's own copy does
  PendingCall call(Op::cuMemcpy3D_v2, submission);
  call.writer().Put(body);
  return call.Finish();
}

// The message for one piece, whose pageable side lies packed in the buffer.
void NarrowTo(const Piece& piece, bool source, CUDA_MEMCPY3D* box) {
  box->srcXInBytes += piece.column;
  box->dstXInBytes += piece.column;
  box->srcY += piece.row;
  box->dstY += piece.row;
  box->srcZ += piece.slice;
  box->dstZ += piece.slice;
  box->WidthInBytes = piece.width;
  box->Height = piece.height;
  box->Depth = piece.depth;
  (source ? box->srcXInBytes : box->dstXInBytes) = 0;
  (source ? box->srcY : box->dstY) = 0;
  (source ? box->srcZ : box->dstZ) = 0;
  (source ? box->srcPitch : box->dstPitch) = piece.width;
  (source ? box->srcHeight : box->dstHeight) = piece.height;
}

CUresult CopyThroughBulk(const CUDA_MEMCPY3D& box, const BoxSide& side, bool source, Way way) {
  const RelaxedCaptures relaxed;  // the host may wait where the driver's own copy does
  // A buffer is used again as soon as its piece is answered, so asynchronous forms wait for their stream.
  if (way.form == CopyForm::kAsynchronous) way.form = CopyForm::kStreamThenWait;
  BoxBody body{};
  const ResolvedStream stream(way.stream);
  if (const CUresult result =
          FillBody(box, way, stream, source ? PackedSide::kSource : PackedSide::kDestination, &body))
    return result;
  const HostRows rows{reinterpret_cast<std::byte*>(side.address),
                      box.WidthInBytes,
                      box.Height,
                      box.Depth,
                      side.pitch,
                      side.pitch * side.rows};
  const auto put = [&](Writer& w, const Piece& piece) {
    body.box = box;
    NarrowTo(piece, source, &body.box);
    w.Put(body);
  };
  return CopyStaged(rows, source, way.form, Op::cuMemcpy3D_v2, stream.submission(), put);
}

CUresult CopyHostToHost(const CUDA_MEMCPY3D& box, const BoxSide& from, const BoxSide& to, CUstream stream) {
  if (const CUresult result = AwaitCopied(stream)) return result;
  for (size_t z = 0; z < box.Depth; ++z) {
    for (size_t y = 0; y < box.Height; ++y) {
      std::memmove(reinterpret_cast<void*>(to.address + (z * to.rows + y) * to.pitch),
                   reinterpret_cast<void*>(from.address + (z * from.rows + y) * from.pitch),
                   box.WidthInBytes);
    }
  }
  return CUDA_SUCCESS;
}

// No array's row is longer: 131,072 elements (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH) of four words.
constexpr uint64_t kMostInArrayRow = 131'072 * 16;

// A linear side that the device reaches must lie in one allocation. Arrays are the host's to judge.
CUresult CheckSide(const BoxSide& side, const CUDA_MEMCPY3D& box, bool* known) {
  *known = false;
  if (side.type == CU_MEMORYTYPE_ARRAY || side.pageable) return CUDA_SUCCESS;
  const auto span =
      (static_cast<unsigned __int128>(box.Depth - 1) * side.rows + box.Height - 1) * side.pitch +
      box.WidthInBytes;
  if (span > uint64_t{1} << 47) return CUDA_ERROR_INVALID_VALUE;
  return CheckDeviceRange(side.address, static_cast<uint64_t>(span), known);
}

}  // namespace

CUresult CopyBox(CUDA_MEMCPY3D box, CUstream stream, CopyForm form, CUcontext source, CUcontext destination) {
  const WithContextOf scope(stream);
  if (const CUresult result = BeginCopy(stream, form)) return result;
  if (box.WidthInBytes == 0 || box.Height == 0 || box.Depth == 0)
    return AnswerCopy(CUDA_SUCCESS, stream, form);
  if (form == CopyForm::kAsynchronous && AnyCapture()) NameOnDevice(box);
  if (box.srcMemoryType == CU_MEMORYTYPE_HOST || box.srcMemoryType == CU_MEMORYTYPE_UNIFIED)
    NameBehindFunctions(SideOf(box, true).address);
  NameManagedAsDevice(&box);
  const BoxSide from = SideOf(box, true), to = SideOf(box, false);
  // The host judges arrays, but ordinary memory is read before it is asked.
  const bool array = from.type == CU_MEMORYTYPE_ARRAY || to.type == CU_MEMORYTYPE_ARRAY;
  bool from_known = false, to_known = false;
  CUresult wrong = (array && box.WidthInBytes > kMostInArrayRow) || !from.fits || !to.fits
                       ? CUDA_ERROR_INVALID_VALUE
                       : CheckSide(from, box, &from_known);
  if (wrong == CUDA_SUCCESS) wrong = CheckSide(to, box, &to_known);
  if (wrong != CUDA_SUCCESS) return AnswerCopy(wrong, stream, form);
  box.srcMemoryType = from.type;
  box.dstMemoryType = to.type;
  if (from.type == CU_MEMORYTYPE_HOST) box.srcHost = reinterpret_cast<const void*>(from.base);
  if (to.type == CU_MEMORYTYPE_HOST) box.dstHost = reinterpret_cast<void*>(to.base);
  box.srcPitch = from.pitch;
  box.dstPitch = to.pitch;
  box.srcHeight = from.rows;
  box.dstHeight = to.rows;
  if (form == CopyForm::kAsynchronous && AnyCapture() && (from.pageable || to.pageable)) {
    bool captured = false;
    const CUresult result = CaptureCopy(stream, box, &captured);
    if (captured || result != CUDA_SUCCESS) return result;
  }
  if (from.type == CU_MEMORYTYPE_HOST && to.type == CU_MEMORYTYPE_HOST && (from.pageable || to.pageable))
    return CopyHostToHost(box, from, to, stream);
  const Way way{stream, form, source, destination};
  if (from.pageable) {
    if (const CUresult result = AwaitFunctionsBefore(stream, from.address)) return result;
    return CopyThroughBulk(box, from, true, way);
  }
  if (to.pageable) return CopyThroughBulk(box, to, false, way);
  return Send(box, way, from_known && to_known);
}

}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
  if (copy == nullptr) return RefuseCopy(nullptr, CopyForm::kSynchronous);
  return CopyBox(Widen(*copy), nullptr, CopyForm::kSynchronous);
}
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) {
  return cuMemcpy2D_v2(copy);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  if (copy == nullptr) return RefuseCopy(stream, CopyForm::kAsynchronous);
  return CopyBox(Widen(*copy), stream, CopyForm::kAsynchronous);
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
  if (copy == nullptr) return RefuseCopy(nullptr, CopyForm::kSynchronous);
  return CopyBox(*copy, nullptr, CopyForm::kSynchronous);
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  if (copy == nullptr) return RefuseCopy(stream, CopyForm::kAsynchronous);
  return CopyBox(*copy, stream, CopyForm::kAsynchronous);
}

// The per-thread forms of the synchronous copies: on the thread's own stream, done when they return.
CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D* copy) {
  if (copy == nullptr) return RefuseCopy(CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait);
  return CopyBox(Widen(*copy), CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait);
}
CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D* copy) {
  return cuMemcpy2D_v2_ptds(copy);
}
CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D* copy) {
  if (copy == nullptr) return RefuseCopy(CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait);
  return CopyBox(*copy, CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait);
}
}  // extern "C"
