// SPDX-License-Identifier: Apache-2.0
// Copies of boxes with a host side. What a message says of it is normalised once, as the driver understands
// it (a pitch of 0 is the end of a row, a height of 0 the end of a slice); the normalised numbers are those
// that are checked, and those that the driver gets.
#pragma once
#include <span>

#include "host_backend/worker/driver/driver.h"
#include "ivshmem_ring/messages/copy_messages.h"

namespace causeway::host {

class Session;

// A box whose host sides lie in the session's own memory or in the bulk buffer. Check alone makes one.
class CheckedBox {
 public:
  CheckedBox() = default;
  // `box`: as the guest sent it but for its arrays, which are the driver's. CUDA_ERROR_INVALID_VALUE: a side
  // is neither host, device nor array memory, or a host side is nowhere.
  static CUresult Check(const Session& session, const CUDA_MEMCPY3D& box, PackedSide packed_side,
                        std::span<std::byte> bulk, CheckedBox* checked);
  const CUDA_MEMCPY3D& get() const { return box_; }
  // From the beginning of the bulk buffer; 0 if none of it is written.
  uint64_t bulk_written() const { return bulk_written_; }

 private:
  CUDA_MEMCPY3D box_{};
  uint64_t bulk_written_ = 0;
};

}  // namespace causeway::host
