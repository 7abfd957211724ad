// SPDX-License-Identifier: Apache-2.0
// Managed memory that the host's driver placed: cuMemAllocManaged in its migrating form, and __managed__
// variables. The guest has pages of its own at the same addresses (guest_lib/managed/areas.h); these messages
// carry bytes between the two.
#pragma once
#include <cstdint>

#include "ivshmem_ring/messages/callback_messages.h"
#include "ivshmem_ring/transport/record.h"

namespace causeway {

// Page faults are served over a channel of their own: whoever faults may be using any other.
inline constexpr uint32_t kManagedChannel = kCallbackChannel - 1;

inline constexpr uint64_t kMaxManagedVariableBytes = 64u << 20;
inline constexpr uint32_t kMaxManagedPieces = 224;        // what fits a channel record
inline constexpr uint32_t kMaxRangeAttributeBytes = 512;  // CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY is a list

struct ManagedPiece {
  uint64_t address;
  uint64_t bytes;
};

// Op::kFindManaged: a ManagedPiece. Reply: u32, 1 if all of it is managed memory.
// Op::kReadManaged, kWriteManaged: this, then `count` ManagedPiece. The bulk buffer holds their bytes, one
// piece after the other; they are written in this order. Done when the reply comes.
struct ManagedCopyBody {
  WireHandle stream;  // the driver copies on it; 0: variables; on one of its own
  uint32_t count;
  uint32_t reserved;
};
static_assert(sizeof(ManagedCopyBody) + kMaxManagedPieces * sizeof(ManagedPiece) + sizeof(RecordHeader) <=
              kMaxChannelRecordBytes);

// Op::cuMemPrefetchAsync_v2, cuMemAdvise_v2.
struct ManagedHintBody {
  uint64_t address;
  uint64_t bytes;
  uint32_t location_type;
  int32_t location_id;
  uint32_t advice;  // of cuMemAdvise
  uint32_t reserved;
  WireHandle stream;  // of cuMemPrefetchAsync
};

// Op::cuMemRangeGetAttribute. Reply: `data_bytes` bytes.
struct RangeAttributeBody {
  uint64_t address;
  uint64_t bytes;
  uint32_t attribute;
  uint32_t data_bytes;
};

}  // namespace causeway
