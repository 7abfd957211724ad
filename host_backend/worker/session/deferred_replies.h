// SPDX-License-Identifier: Apache-2.0
// Waiting for pageable copies. The pieces of a large one are answered when the device has done them; until
// then the channel's next requests, the following pieces, are started.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

#include "host_backend/worker/driver/driver.h"
#include "ivshmem_ring/transport/record.h"

namespace causeway::host {

struct Request;
class Session;

// Whether the request is such a piece. Without shared memory none is: bytes cross the connection with the
// reply.
bool IsStaged(const Session& session, const RecordHeader& header);

// For the handler of a piece: its copy is on `stream`, and its reply waits for it.
CUresult AnswerWhenDone(Request& request, CUstream stream);

// Waits for copies on the legacy stream that the guest posted because nothing was left that they would have
// to wait for: what follows on other streams may rely on them. Something may have come in between, which must
// not hold up the main link, so not for long. False: `more` became true before they were done.
bool AwaitPostedCopies(const std::function<bool()>& more, CUresult* result);

// One channel's pieces that are on the device, in their order.
class StagedPieces {
 public:
  StagedPieces() = default;
  ~StagedPieces();
  StagedPieces(const StagedPieces&) = delete;
  StagedPieces& operator=(const StagedPieces&) = delete;

  bool empty() const { return count_ == 0; }
  // More are not handed to the driver at once: they would only lengthen the queue that another stream's small
  // copy meets in the copy engine.
  bool full() const { return count_ == kMost; }
  // `done` null: the piece was not started, `reply` says why.
  void Add(const RecordHeader& reply, CUevent done);
  // Whether the oldest is done; if so its reply.
  bool Take(RecordHeader* reply);

 private:
  static constexpr uint32_t kMost = 3;
  struct Piece {
    RecordHeader reply;
    CUevent done;
  };
  Piece pieces_[kMost] = {};
  uint32_t first_ = 0, count_ = 0;
  uint32_t asked_ = 0;  // how often for the oldest
};

}  // namespace causeway::host
