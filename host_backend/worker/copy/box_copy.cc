// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/copy/box_copy.h"

#include "host_backend/worker/addresses/arenas.h"
#include "host_backend/worker/session/session.h"

namespace causeway::host {
namespace {

// One side's part of CUDA_MEMCPY3D, by reference: what is written here is what the driver gets.
struct Side {
  CUmemorytype type;
  size_t x, y, z;
  size_t& pitch;
  size_t& height;
  const void* host;
};

Side SourceOf(CUDA_MEMCPY3D& box) {
  return {box.srcMemoryType, box.srcXInBytes, box.srcY, box.srcZ, box.srcPitch, box.srcHeight, box.srcHost};
}

Side DestinationOf(CUDA_MEMCPY3D& box) {
  return {box.dstMemoryType, box.dstXInBytes, box.dstY, box.dstZ, box.dstPitch, box.dstHeight, box.dstHost};
}

// Gives pitch and height the values that the driver would take 0 for, and finds how many bytes from the
// side's address on the copy may touch. 0: more than memory could have, or none.
uint64_t NormaliseAndSpan(const CUDA_MEMCPY3D& box, Side& side) {
  constexpr uint64_t kLimit = uint64_t{1} << 40;
  for (const uint64_t value :
       {side.x, side.y, side.z, side.pitch, side.height, box.WidthInBytes, box.Height, box.Depth}) {
    if (value > kLimit) return 0;
  }
  if (box.WidthInBytes == 0 || box.Height == 0 || box.Depth == 0) return 0;
  if (side.pitch == 0) side.pitch = side.x + box.WidthInBytes;
  if (side.height == 0) side.height = side.y + box.Height;
  // The driver refuses these itself where they matter; then no row begins before the one above it ends.
  const bool rows_fit = side.pitch >= side.x + box.WidthInBytes || (box.Height == 1 && box.Depth == 1);
  const bool slices_fit = side.height >= side.y + box.Height || box.Depth == 1;
  if (!rows_fit || !slices_fit) return 0;
  const auto last_row =
      (static_cast<unsigned __int128>(side.z) + box.Depth - 1) * side.height + side.y + box.Height - 1;
  if (last_row > kLimit) return 0;
  const unsigned __int128 bytes = last_row * side.pitch + side.x + box.WidthInBytes;
  return bytes > kLimit ? 0 : static_cast<uint64_t>(bytes);
}

bool IsKnown(CUmemorytype type) {
  // Not CU_MEMORYTYPE_UNIFIED: it would make any address of this process host memory. Guests resolve it.
  return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY;
}

// Where a side's bytes are, and how many of them the copy may touch. Nothing for device memory and arrays, which
// the driver judges. CUDA_ERROR_INVALID_VALUE: nowhere that the guest could name.
CUresult Locate(const Session& session, const CUDA_MEMCPY3D& box, Side side, bool in_bulk,
                std::span<std::byte> bulk, std::span<std::byte>* found) {
  *found = {};
  if (!IsKnown(side.type)) return CUDA_ERROR_INVALID_VALUE;
  if (side.type != CU_MEMORYTYPE_HOST) return CUDA_SUCCESS;
  const uint64_t span = NormaliseAndSpan(box, side);
  if (span == 0) return CUDA_ERROR_INVALID_VALUE;
  if (in_bulk) {
    if (span <= bulk.size()) *found = bulk.first(span);
  } else if (const HostSpan own =
                 session.part<Arenas>().ResolveAddress(reinterpret_cast<uint64_t>(side.host), span)) {
    *found = {own.data(), span};
  }
  return found->data() != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult CheckedBox::Check(const Session& session, const CUDA_MEMCPY3D& box, PackedSide packed_side,
                           std::span<std::byte> bulk, CheckedBox* checked) {
  CheckedBox made;
  made.box_ = box;
  CUDA_MEMCPY3D& to = made.box_;
  std::span<std::byte> from, into;
  if (const CUresult result =
          Locate(session, box, SourceOf(to), packed_side == PackedSide::kSource, bulk, &from))
    return result;
  if (const CUresult result =
          Locate(session, box, DestinationOf(to), packed_side == PackedSide::kDestination, bulk, &into))
    return result;
  to.srcHost = from.data();
  to.dstHost = into.data();
  if (packed_side == PackedSide::kDestination) made.bulk_written_ = into.size();
  to.reserved0 = nullptr;
  to.reserved1 = nullptr;
  *checked = made;
  return CUDA_SUCCESS;
}

}  // namespace causeway::host
