// SPDX-License-Identifier: Apache-2.0
// Replies that are sent when the device has done the work of their requests: the pieces of large copies of
// pageable memory. Until then the channel's next requests, the following pieces, are started.
#pragma once
#include <cstdint>

#include "host_backend/worker/driver/driver.h"
#include "ivshmem_ring/transport/record.h"

namespace causeway::host {

struct Request;
class Session;

// Whether the request is such a piece.
bool MayBeDeferred(const RecordHeader& header);

// For the handler of a piece: its copy is on `stream`, and its reply waits for it.
CUresult AnswerWhenDone(Request& request, CUstream stream);

// Those that one channel owes, in their order. Its thread alone.
class DeferredReplies {
 public:
  DeferredReplies() = default;
  ~DeferredReplies();
  DeferredReplies(const DeferredReplies&) = delete;
  DeferredReplies& operator=(const DeferredReplies&) = delete;

  bool empty() const { return count_ == 0; }
  // More are not handed to the driver at once: another stream's small copy would wait for them.
  bool full() const { return count_ == kMost; }
  // `done` null: the piece was not started, `reply` says why.
  void Add(const RecordHeader& reply, CUevent done);
  // Whether the oldest is done; if so its reply.
  bool Take(RecordHeader* reply);

 private:
  static constexpr uint32_t kMost = 3;
  struct Deferred {
    RecordHeader reply;
    CUevent done;
  };
  Deferred replies_[kMost] = {};
  uint32_t first_ = 0, count_ = 0;
  uint32_t asked_ = 0;  // how often for the oldest
};

}  // namespace causeway::host
