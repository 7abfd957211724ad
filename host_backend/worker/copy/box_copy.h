// SPDX-License-Identifier: Apache-2.0
// 3D copies with host memory on one side or both. What a message says of them is normalised once, as the
// driver understands it (a pitch of 0 means that a row ends with the copy's, a height of 0 that a slice
// does). The normalised numbers are those that are checked, and those that the driver gets.
#pragma once
#include <span>

#include "host_backend/worker/driver/driver.h"
#include "ivshmem_ring/messages/copy_messages.h"

namespace causeway::host {

class Session;

// A 3D copy whose host sides lie in the session's own memory or in the staging buffer `bulk`. Only Check
// makes one. It belongs to one thread.
class CheckedBox {
 public:
  CheckedBox() = default;
  // `box` is as the guest sent it, but with the driver's arrays; `packed_side` is the one whose rows lie
  // without gaps in `bulk`. CUDA_ERROR_INVALID_VALUE: a side is neither host, device nor array memory, or a
  // host side is not memory of the session.
  static CUresult Check(const Session& session, const CUDA_MEMCPY3D& box, PackedSide packed_side,
                        std::span<std::byte> bulk, CheckedBox* checked);
  const CUDA_MEMCPY3D& get() const { return box_; }
  // How many bytes from the beginning of the staging buffer the copy writes; 0: none.
  uint64_t bulk_written() const { return bulk_written_; }

 private:
  CUDA_MEMCPY3D box_{};
  uint64_t bulk_written_ = 0;
};

}  // namespace causeway::host
