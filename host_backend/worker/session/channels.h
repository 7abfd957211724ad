// SPDX-License-Identifier: Apache-2.0
// The RPC channels of a session: requests whose guest threads wait for replies. Each has a thread of its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/transport.h"

namespace causeway::host {

class DeferredReplies;

// kBulkBytes of memory that stay where they are until the session ends, as what the driver was given once it may
// write at any later time: a copy to host memory that was captured writes there at each launch of its graph.
class LastingBuffer {
 public:
  LastingBuffer() = default;
  ~LastingBuffer();
  LastingBuffer(const LastingBuffer&) = delete;
  LastingBuffer& operator=(const LastingBuffer&) = delete;
  // The same memory each time; none, where there was none to be had.
  std::span<std::byte> Get();

 private:
  std::byte* base_ = nullptr;
};

class Channels : public SessionPart {
 public:
  // All outlive the channels' threads.
  Channels(Session& session, Dispatcher& dispatcher, ServerTransport& transport);
  // The channels' threads end because the session has stopped the transport.
  void Join() override;

  // Starts the channel's thread, unless it is open or there is none with that number. Any thread may call it.
  void Open(uint32_t channel);

 private:
  void Serve(uint32_t channel);
  // Sends the replies that are due, until there is a request to serve or, if `all`, none is left. False: the
  // session stops.
  bool SendDeferred(uint32_t channel, DeferredReplies& replies, bool all);
  bool PutReply(uint32_t channel, const RecordHeader& reply, std::span<const std::byte> body);
  void NoteText(RecordHeader* reply);

  Session& session_;
  Dispatcher& dispatcher_;
  ServerTransport& transport_;
  // Bodies that are larger than a record lie in the bulk buffer that the request lends: a request's is copied
  // out before anyone looks at it, a reply's is copied in when it is complete.
  struct LargeBody {
    LastingBuffer request, reply;
  };
  std::vector<std::byte> reply_bodies_[kChannelCount];  // each is used by one channel's thread, as the next
  LargeBody large_bodies_[kChannelCount];
  std::mutex mutex_;
  uint64_t opened_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace causeway::host
