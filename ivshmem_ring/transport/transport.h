// SPDX-License-Identifier: Apache-2.0
// The seam between messages and the way they travel. Above it nothing knows whether memory is shared.
//
//   main link   guest -> host, ordered, no replies: whatever need not be waited for
//   channel i   request and reply, one outstanding caller: whatever is waited for; each has its own host
//   thread bulk        buffers of kBulkBytes that a request lends to the host (both directions)
//
// A record in these calls is a RecordHeader and its body, contiguous; the caller fills all header fields but
// `bytes` and `sequence`.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "ivshmem_ring/transport/record.h"

namespace causeway {

// A bulk buffer as the guest sees it.
struct Bulk {
  std::byte* bytes = nullptr;
  uint64_t offset = 0;  // RecordHeader::bulk_offset
};

// What is known of a reply before it is waited for.
struct ReplyWait {
  uint32_t kind = 0;      // waits of one kind take about the same time; 0: nothing is known
  bool blocking = false;  // the program asked to sleep meanwhile
  bool patient = false;   // it may come at any time, or never
};

class ClientTransport {
 public:
  virtual ~ClientTransport() = default;

  // Main link. The caller holds the session's main lock from Reserve to Publish; it may be given back while
  // there is no room, so that all who wait have the same chance. Null: the session is lost.
  virtual std::byte* ReserveMain(size_t bytes, std::unique_lock<std::mutex>& lock) = 0;
  virtual void PublishMain(size_t bytes) = 0;
  virtual uint64_t main_sequence() const = 0;  // records published so far

  // Channels. The caller owns the channel from ReserveRequest until its last AwaitReply.
  virtual std::byte* ReserveRequest(uint32_t channel, size_t bytes) = 0;
  virtual void PublishRequest(uint32_t channel, size_t bytes) = 0;
  // The next reply, valid until the next AwaitReply of that channel. Empty: the session is lost.
  virtual std::span<const std::byte> AwaitReply(uint32_t channel, ReplyWait wait = {}) = 0;
  // Whether AwaitReply would return at once.
  virtual bool ReplyReady(uint32_t channel) = 0;

  // Error of posted calls: count << 32 | CUresult of the newest one. 0: none yet.
  virtual uint64_t AsyncError() const = 0;

  // Memory. True: the host maps region memory, so pinned memory and zero copy exist.
  virtual bool shares_memory() const = 0;
  // Why the session was lost; empty while it lives.
  virtual std::string LossReason() = 0;
};

enum class ReceiveStatus { kRecord, kStopped, kCorrupt };

class ServerTransport {
 public:
  virtual ~ServerTransport() = default;

  // Waits for the next record; the view is valid until the next Receive of that link. kStopped: Stop() was
  // called or the connection ended. kCorrupt: the peer broke the format.
  virtual ReceiveStatus ReceiveMain(std::span<const std::byte>* record) = 0;
  virtual void DoneMain() = 0;  // the record is executed, its room returns
  // It was copied, and its room returns; another thread executes it, and tells that it has: any thread.
  virtual void HandedMain() = 0;
  virtual void ExecutedMain(uint64_t sequence) = 0;
  virtual bool MainReady() = 0;  // whether ReceiveMain would return at once
  virtual ReceiveStatus ReceiveRequest(uint32_t channel, std::span<const std::byte>* record) = 0;
  // Whether ReceiveRequest would return at once.
  virtual bool RequestReady(uint32_t channel) = 0;
  virtual void DoneRequest(uint32_t channel) = 0;

  // A reply of up to `bytes`. Reserve is null when the session stops. Reserving no more than the reply needs
  // matters: the guest may have sent several requests ahead and reads no reply before it has room for its
  // next request.
  virtual std::byte* ReserveReply(uint32_t channel, size_t bytes = kMaxChannelRecordBytes) = 0;
  virtual void PublishReply(uint32_t channel, size_t bytes) = 0;

  virtual void PostAsyncError(uint32_t result) = 0;
  // The bulk buffer that a request lends; empty if it names memory that is not the session's.
  virtual std::span<std::byte> BulkOf(uint32_t channel, const RecordHeader& header) = 0;

  virtual bool shares_memory() const = 0;
  // Ends every wait, now and later. Callable from any thread.
  virtual void Stop() = 0;
  virtual const char* CorruptReason() const = 0;
};

}  // namespace causeway
