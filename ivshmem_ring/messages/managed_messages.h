// SPDX-License-Identifier: Apache-2.0
// Messages about managed memory that the host's driver placed: cuMemAllocManaged in its migrating form, and
// __managed__ variables (docs/managed_memory.md). The guest has pages of its own at the same addresses
// (guest_lib/managed/areas.h), and these messages carry bytes between the two. The same holds for pinned memory
// of guests that share none, which Op::kRegisterHost has placed.
#pragma once
#include <cstdint>

#include "ivshmem_ring/messages/callback_messages.h"
#include "ivshmem_ring/transport/record.h"

namespace causeway {

// Page faults are served over a channel of their own, because the thread that faults may be using any other.
inline constexpr uint32_t kManagedChannel = kCallbackChannel - 1;

inline constexpr uint64_t kMaxManagedVariableBytes = 64u << 20;
inline constexpr uint32_t kMaxManagedPieces = 224;        // as many as fit a channel record
inline constexpr uint32_t kMaxRangeAttributeBytes = 512;  // CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY is a list

// The bytes [address, address + bytes).
struct ManagedPiece {
  uint64_t address;
  uint64_t bytes;
};

// Op::kFindManaged: a ManagedPiece. The reply: a u32, 1 if all of it is managed memory.
// Op::kReadManaged, kWriteManaged: this, then `count` ManagedPiece. The staging buffer holds their bytes, one
// piece after the other, and they are written in this order. The copy is done when the reply comes.
struct ManagedCopyBody {
  // The stream in which the driver copies. 0: for variables one of the worker's own, and none for pinned memory.
  WireHandle stream;
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
  uint32_t advice;  // for cuMemAdvise
  uint32_t reserved;
  WireHandle stream;  // for cuMemPrefetchAsync
};

// Op::cuMemRangeGetAttribute. The reply: data_bytes bytes.
struct RangeAttributeBody {
  uint64_t address;
  uint64_t bytes;
  uint32_t attribute;
  uint32_t data_bytes;
};

}  // namespace causeway
