// SPDX-License-Identifier: Apache-2.0
// Two- and three-dimensional copies. All become one CUDA_MEMCPY3D; a pageable side is packed into a bulk
// buffer, as many rows at a time as fit.
#include <algorithm>
#include <cstring>

#include "guest_lib/copy.h"
#include "guest_lib/graph_copy.h"
#include "guest_lib/memory.h"
#include "guest_lib/remote.h"

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

// One side, resolved: unified addresses become host or device.
struct Side {
  CUmemorytype type;
  uint64_t address;  // of the box's first byte if linear
  size_t pitch, rows;
  bool pageable;
};

CUresult ResolveSide(CUmemorytype* type, const void** host, CUdeviceptr* device, size_t x, size_t y, size_t z,
                     size_t* pitch, size_t* rows, const CUDA_MEMCPY3D& box, Side* side) {
  if (*type == CU_MEMORYTYPE_UNIFIED) {
    const PointerKind kind = KindOfPointer(*device);
    *type = kind == PointerKind::kDevice ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    *host = reinterpret_cast<const void*>(*device);
  }
  if (*pitch == 0) *pitch = x + box.WidthInBytes;
  if (*rows == 0) *rows = y + box.Height;
  const uint64_t base = *type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(*host) : *device;
  side->type = *type;
  side->pitch = *pitch;
  side->rows = *rows;
  side->address = base + (uint64_t{z} * *rows + y) * *pitch + x;
  side->pageable = *type == CU_MEMORYTYPE_HOST && KindOfPointer(base) == PointerKind::kPageable;
  if (*type == CU_MEMORYTYPE_ARRAY) return CUDA_SUCCESS;
  return base != 0 && *pitch >= x + box.WidthInBytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// How a box travels, beside the box itself.
struct Way {
  CUstream stream;
  CopyForm form;
  CUcontext source = nullptr, destination = nullptr;  // of cuMemcpy3DPeer
};

CUresult Send(const CUDA_MEMCPY3D& box, const Way& way, uint32_t bulk_side, uint32_t index,
              uint32_t bulk_bytes, bool known) {
  Remote remote;
  Writer check{{}};
  BoxBody body{};
  body.box = box;
  body.source_array = box.srcMemoryType == CU_MEMORYTYPE_ARRAY ? remote.ToWire(box.srcArray, check) : 0;
  body.destination_array = box.dstMemoryType == CU_MEMORYTYPE_ARRAY ? remote.ToWire(box.dstArray, check) : 0;
  body.stream = remote.ToWire(way.stream, check);
  body.source_context = remote.ToWire(way.source, check);
  body.destination_context = remote.ToWire(way.destination, check);
  body.asynchronous = static_cast<uint32_t>(way.form == CopyForm::kSynchronous    ? 0
                                            : way.form == CopyForm::kAsynchronous ? 1
                                                                                  : 2);
  body.bulk_side = bulk_side;
  if (!check.ok()) return check.error();
  if (bulk_side == 0 && way.form == CopyForm::kAsynchronous && known) {
    PendingPost post(Op::cuMemcpy3D_v2);
    post.writer().Put(body);
    return post.writer().ok() ? post.Finish() : post.writer().error();
  }
  ChannelLease lease;
  Writer w = lease.Begin();
  w.Put(body);
  const uint16_t flags = bulk_side == 1 ? kBulkToHost : bulk_side == 2 ? kBulkToGuest : 0;
  const uint64_t offset = bulk_side != 0 ? lease.session().bulk(index).offset : 0;
  CUresult result = lease.Send(Op::cuMemcpy3D_v2, w, flags, offset, bulk_bytes);
  Reader none;
  return result == CUDA_SUCCESS ? lease.Await(&none) : result;
}

// A piece of the box: rows [row, row + rows) of one slice, bytes [column, column + width).
struct Piece {
  size_t slice, row, rows, column, width;
};

void CopyRows(bool to_bulk, std::byte* bulk, const Side& side, const Piece& piece) {
  for (size_t r = 0; r < piece.rows; ++r) {
    auto* linear = reinterpret_cast<std::byte*>(
        side.address + (piece.slice * side.rows + piece.row + r) * side.pitch + piece.column);
    std::byte* packed = bulk + r * piece.width;
    to_bulk ? std::memcpy(packed, linear, piece.width) : std::memcpy(linear, packed, piece.width);
  }
}

CUresult CopyPiece(CUDA_MEMCPY3D box, const Side& side, bool source, const Piece& piece, const Way& way,
                   uint32_t index) {
  Session& session = *Session::Get();
  box.srcXInBytes += piece.column;
  box.dstXInBytes += piece.column;
  box.srcY += piece.row;
  box.dstY += piece.row;
  box.srcZ += piece.slice;
  box.dstZ += piece.slice;
  box.WidthInBytes = piece.width;
  box.Height = piece.rows;
  box.Depth = 1;
  (source ? box.srcXInBytes : box.dstXInBytes) = 0;
  (source ? box.srcY : box.dstY) = 0;
  (source ? box.srcZ : box.dstZ) = 0;
  (source ? box.srcPitch : box.dstPitch) = piece.width;
  (source ? box.srcHeight : box.dstHeight) = piece.rows;
  if (source) CopyRows(true, session.bulk(index).bytes, side, piece);
  const auto bytes = static_cast<uint32_t>(piece.width * piece.rows);
  const CUresult result = Send(box, way, source ? 1 : 2, index, bytes, false);
  if (result == CUDA_SUCCESS && !source) CopyRows(false, session.bulk(index).bytes, side, piece);
  return result;
}

CUresult CopyThroughBulk(const CUDA_MEMCPY3D& box, const Side& side, bool source, Way way) {
  // A bulk buffer is used again as soon as the call returns, so asynchronous forms wait for their stream
  // here.
  if (way.form == CopyForm::kAsynchronous) way.form = CopyForm::kStreamThenWait;
  Session& session = *Session::Get();
  const uint32_t index = session.AcquireBulk();
  CUresult result = CUDA_SUCCESS;
  const size_t width = std::min<size_t>(box.WidthInBytes, kBulkBytes);
  const size_t rows = std::max<size_t>(1, kBulkBytes / box.WidthInBytes);
  for (size_t slice = 0; slice < box.Depth && result == CUDA_SUCCESS; ++slice) {
    for (size_t row = 0; row < box.Height && result == CUDA_SUCCESS; row += rows) {
      for (size_t column = 0; column < box.WidthInBytes && result == CUDA_SUCCESS; column += width) {
        const Piece piece{slice, row, std::min(rows, box.Height - row), column,
                          std::min(width, box.WidthInBytes - column)};
        result = CopyPiece(box, side, source, piece, way, index);
      }
    }
  }
  session.ReleaseBulk(index);
  return result;
}

CUresult CopyHostToHost(const CUDA_MEMCPY3D& box, const Side& from, const Side& to, CUstream stream) {
  if (const CUresult result = cuStreamSynchronize(stream)) return result;
  for (size_t z = 0; z < box.Depth; ++z) {
    for (size_t y = 0; y < box.Height; ++y) {
      std::memmove(reinterpret_cast<void*>(to.address + (z * to.rows + y) * to.pitch),
                   reinterpret_cast<void*>(from.address + (z * from.rows + y) * from.pitch),
                   box.WidthInBytes);
    }
  }
  return CUDA_SUCCESS;
}

// A linear side that the device reaches must lie in one allocation. Arrays are the host's to judge.
CUresult CheckSide(const Side& side, const CUDA_MEMCPY3D& box, bool* known) {
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
  if (const CUresult result = NeedContext()) return result;
  if (box.WidthInBytes == 0 || box.Height == 0 || box.Depth == 0) return CUDA_SUCCESS;
  Side from{}, to{};
  if (const CUresult result = ResolveSide(&box.srcMemoryType, &box.srcHost, &box.srcDevice, box.srcXInBytes,
                                          box.srcY, box.srcZ, &box.srcPitch, &box.srcHeight, box, &from)) {
    return result;
  }
  const void* to_host = box.dstHost;
  if (const CUresult result = ResolveSide(&box.dstMemoryType, &to_host, &box.dstDevice, box.dstXInBytes,
                                          box.dstY, box.dstZ, &box.dstPitch, &box.dstHeight, box, &to)) {
    return result;
  }
  box.dstHost = const_cast<void*>(to_host);
  bool from_known = false, to_known = false;
  if (const CUresult result = CheckSide(from, box, &from_known)) return result;
  if (const CUresult result = CheckSide(to, box, &to_known)) return result;
  if (form == CopyForm::kAsynchronous && AnyCapture() && (from.pageable || to.pageable)) {
    bool captured = false;
    const CUresult result = CaptureCopy(stream, box, &captured);
    if (captured || result != CUDA_SUCCESS) return result;
  }
  if (from.type == CU_MEMORYTYPE_HOST && to.type == CU_MEMORYTYPE_HOST && (from.pageable || to.pageable))
    return CopyHostToHost(box, from, to, stream);
  const Way way{stream, form, source, destination};
  if (from.pageable) return CopyThroughBulk(box, from, true, way);
  if (to.pageable) return CopyThroughBulk(box, to, false, way);
  return Send(box, way, 0, 0, 0, from_known && to_known);
}

}  // namespace causeway::guest

using namespace causeway::guest;

extern "C" {

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
  return copy != nullptr ? CopyBox(Widen(*copy), nullptr, CopyForm::kSynchronous) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) {
  return cuMemcpy2D_v2(copy);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy != nullptr ? CopyBox(Widen(*copy), stream, CopyForm::kAsynchronous) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
  return copy != nullptr ? CopyBox(*copy, nullptr, CopyForm::kSynchronous) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy != nullptr ? CopyBox(*copy, stream, CopyForm::kAsynchronous) : CUDA_ERROR_INVALID_VALUE;
}

// The per-thread forms of the synchronous copies: on the thread's own stream, done when they return.
CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D* copy) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return CopyBox(Widen(*copy), CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait);
}
CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D* copy) {
  return cuMemcpy2D_v2_ptds(copy);
}
CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D* copy) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return CopyBox(*copy, CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait);
}
}  // extern "C"
