// SPDX-License-Identifier: Apache-2.0
// Which way a linear copy between ordinary memory of the program and the device takes: a decision about sizes
// and a few facts, without side effects. guest_lib/copy/copy.cc carries it out.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ivshmem_ring/messages/copy_messages.h"
#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/transport/record.h"

namespace causeway::guest {

// The sizes in bytes at which the way changes, smallest first.
//
// Smaller copies go with the record: a staging buffer and a fence for each would keep the device longer than
// bytes in its commands where copies follow each other.
inline constexpr uint64_t kLeastInLoneBuffer = 1u << 10;
// The most that a request or reply of an RPC channel carries.
inline constexpr uint64_t kMostInRequest = kMaxChannelCopyBytes;
// From here on a staging buffer is better than the record: the submission queue's memory is never warm in the
// caller's cache, and the host would copy the bytes twice more.
inline constexpr uint64_t kLeastInBuffer = 16u << 10;
// The most that a posted record carries.
inline constexpr uint64_t kMostInRecord = kMaxInlineCopyBytes;
// Up to here a synchronous copy is not cut into pieces.
inline constexpr uint64_t kMostUncut = 256u << 10;
// Up to here the asynchronous form captures its source and returns before its stream is there, as natively.
inline constexpr uint64_t kMostCaptured = kBulkBytes;
// 3D copies of less are cut into small pieces.
inline constexpr uint64_t kLeastLargeBox = 2u << 20;
// From here on the GPU itself waits for the pieces (guest_lib/staging/queued_copy.h).
inline constexpr uint64_t kLeastQueued = 4u << 20;
// From here on those pieces are of 1 MiB, which cost the device less for each byte.
inline constexpr uint64_t kLeastQueuedLarge = 32u << 20;
// Up to here a synchronous copy of pinned memory is waited for by its fence. Beyond, polling would cost more.
inline constexpr uint64_t kMostPinnedByFence = 64u << 20;

// One copy. `host` is the program's memory, valid until the copy has taken or written it.
struct LinearCopy {
  CUdeviceptr device;
  std::byte* host;
  uint64_t bytes;
  CUstream stream;  // null for kSynchronous
  CopyForm form;
  bool to_device;
  bool leaves = false;  // the call returns when the source is taken
  bool idle = false;    // the stream is known to have nothing else to do
  uint64_t posts = 0;   // result of a copy that was waited for: the count of posts up to its end
};

// Whether the copy returns when its source is taken, before the stream has come to it.
inline bool CapturesSource(bool to_device, CopyForm form, uint64_t bytes) {
  return to_device && form == CopyForm::kAsynchronous && bytes <= kMostCaptured;
}

// What a plan depends on.
struct CopyFacts {
  bool to_device;
  CopyForm form;
  uint64_t bytes;
  bool known;         // the device's side lies in one allocation that this process knows
  bool quiet;         // synchronous, to the device: there is nothing to wait for, so it may return early
  bool syncs_memops;  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of the device's side
};

// What is tried, in this order. A way that cannot be had at the moment (no buffer is free, a stream captures,
// memory is not shared) leaves the copy to the next; the last one always can.
struct CopyPlan {
  // Posted, and the caller does not wait.
  enum class Post : uint8_t {
    kNot,
    kRecord,          // the bytes go with the record
    kLoneBuffer,      // in a staging buffer if none is in flight, else with the record
    kBufferOrRecord,  // in a staging buffer if one is free, else with the record
    kBuffer,          // in a staging buffer
    kPieces           // in several
  };
  // Posted, and the caller polls the fence value behind it; no thread of the host waits.
  enum class Fence : uint8_t { kNot, kWhole, kPieces };
  // Requests, which the host answers when the copy is done.
  enum class Ask : uint8_t { kRequest, kPieces };

  Post post = Post::kNot;
  Fence fence = Fence::kNot;
  Ask ask = Ask::kRequest;
};

inline CopyPlan::Post PlanPost(const CopyFacts& facts) {
  using Post = CopyPlan::Post;
  const bool returns_early =
      facts.form == CopyForm::kAsynchronous || (facts.form == CopyForm::kSynchronous && facts.quiet);
  if (!facts.to_device || !facts.known || !returns_early) return Post::kNot;
  if (facts.bytes < kLeastInLoneBuffer) return Post::kRecord;
  if (facts.bytes < kLeastInBuffer) return Post::kLoneBuffer;
  if (facts.bytes <= kMostInRecord) return Post::kBufferOrRecord;
  if (facts.bytes <= kMostCaptured) return facts.syncs_memops ? Post::kNot : Post::kBuffer;
  return facts.form == CopyForm::kSynchronous ? Post::kPieces : Post::kNot;
}

// Inline, because returning the plan through memory would take longer than a small copy: the processor can
// read fields that were written one by one only when earlier stores, also to the ring, are in the cache.
inline CopyPlan PlanCopy(const CopyFacts& facts) {
  CopyPlan plan;
  plan.post = PlanPost(facts);
  if (facts.known && !CapturesSource(facts.to_device, facts.form, facts.bytes))
    plan.fence = facts.bytes <= kMostUncut ? CopyPlan::Fence::kWhole : CopyPlan::Fence::kPieces;
  plan.ask = facts.bytes <= kMostInRequest ? CopyPlan::Ask::kRequest : CopyPlan::Ask::kPieces;
  return plan;
}

}  // namespace causeway::guest
