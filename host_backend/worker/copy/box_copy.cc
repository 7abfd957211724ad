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
  uint64_t address;
};

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

// Where a side's bytes are. Null: nowhere that the guest could name.
std::byte* Locate(const Session& session, const Side& side, uint64_t span, bool in_bulk,
                  std::span<std::byte> bulk) {
  if (span == 0) return nullptr;
  if (in_bulk) return span <= bulk.size() ? bulk.data() : nullptr;
  return session.part<Arenas>().ResolveAddress(side.address, span).data();
}

bool IsKnown(CUmemorytype type) {
  // Not CU_MEMORYTYPE_UNIFIED: the driver would take any address of this process for host memory. Guests
  // resolve those.
  return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY;
}

}  // namespace

CUresult CheckedBox::Check(const Session& session, const CUDA_MEMCPY3D& box, BulkSide bulk_side,
                           std::span<std::byte> bulk, CheckedBox* checked) {
  CheckedBox made;
  made.box_ = box;
  CUDA_MEMCPY3D& to = made.box_;
  if (!IsKnown(box.srcMemoryType) || !IsKnown(box.dstMemoryType)) return CUDA_ERROR_INVALID_VALUE;
  if (box.srcMemoryType == CU_MEMORYTYPE_HOST) {
    Side side{to.srcMemoryType,
              to.srcXInBytes,
              to.srcY,
              to.srcZ,
              to.srcPitch,
              to.srcHeight,
              reinterpret_cast<uint64_t>(to.srcHost)};
    to.srcHost = Locate(session, side, NormaliseAndSpan(box, side), bulk_side == BulkSide::kSource, bulk);
    if (to.srcHost == nullptr) return CUDA_ERROR_INVALID_VALUE;
  } else {
    to.srcHost = nullptr;
  }
  if (box.dstMemoryType == CU_MEMORYTYPE_HOST) {
    Side side{to.dstMemoryType,
              to.dstXInBytes,
              to.dstY,
              to.dstZ,
              to.dstPitch,
              to.dstHeight,
              reinterpret_cast<uint64_t>(to.dstHost)};
    const uint64_t span = NormaliseAndSpan(box, side);
    to.dstHost = Locate(session, side, span, bulk_side == BulkSide::kDestination, bulk);
    if (to.dstHost == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (bulk_side == BulkSide::kDestination) made.bulk_written_ = span;
  } else {
    to.dstHost = nullptr;
  }
  to.reserved0 = nullptr;
  to.reserved1 = nullptr;
  *checked = made;
  return CUDA_SUCCESS;
}

}  // namespace causeway::host
