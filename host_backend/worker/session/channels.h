// SPDX-License-Identifier: Apache-2.0
// The channels of a session: requests whose guest threads wait for the replies. Each opened channel has a
// thread of its own here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/transport.h"

namespace causeway::host {

class DeferredReplies;
class Session;

class Channels {
 public:
  Channels(Session& session, ServerTransport& transport);
  // The session has stopped.
  ~Channels();
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  // Nothing happens for one that is open, or out of range. Any thread.
  void Open(uint32_t channel);

 private:
  void Serve(uint32_t channel);
  // Sends the replies that are due, until there is a request to serve or, if `all`, none is left. False: the
  // session stops.
  bool SendDeferred(uint32_t channel, DeferredReplies& replies, bool all);
  bool PutReply(uint32_t channel, const RecordHeader& reply, std::span<const std::byte> body);
  void NoteText(RecordHeader* reply);

  Session& session_;
  ServerTransport& transport_;
  std::vector<std::byte> reply_bodies_[kChannelCount];  // of one channel's thread each
  std::mutex mutex_;
  uint64_t opened_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace causeway::host
