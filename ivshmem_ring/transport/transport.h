// SPDX-License-Identifier: Apache-2.0
// The border between messages and the way they travel. Code above it does not know whether the two sides
// share memory (ring_transport.h) or are joined by a stream socket (tcp/tcp_transport.h).
//
//   submission queue   guest -> host, in order, without replies: calls that no thread waits for ("Main")
//   RPC channel        requests and replies of one waiting guest thread; the host has a thread for each
//   staging buffer     kBulkBytes of memory that a request lends to the host, in either direction ("Bulk")
//
// A record in these calls is a RecordHeader, or in the submission queue a PostedHeader, and right behind it
// its body. The caller fills all header fields but `bytes` and `sequence`, which publishing fills in.
//
// Ownership: memory that a Reserve function returns belongs to the caller until the Publish function that
// belongs to it, and stays the transport's. Errors: a lost session is reported by null, an empty view or a
// status, never by an exception; LossReason() says what happened. Every wait is bounded by the peer's life.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <span>
#include <string>

#include "ivshmem_ring/transport/record.h"
#include "ivshmem_ring/transport/ring.h"

namespace causeway {

// A staging buffer as the guest sees it.
struct Bulk {
  std::byte* bytes = nullptr;
  uint64_t offset = 0;  // what RecordHeader::bulk_offset says of it
};

// What the caller knows of a reply before it waits for it.
struct ReplyWait {
  uint32_t kind = 0;      // waits of one kind take about the same time; 0: nothing is known
  bool blocking = false;  // the program asked for a wait that costs no processor time
  bool patient = false;   // the reply may come at any time, or never
};

// The guest's end. Different threads may use different channels, and the submission queue, at once.
class ClientTransport {
 public:
  virtual ~ClientTransport() = default;

  // The submission queue. The caller holds the session's main lock from ReserveMain to PublishMain.
  // ReserveMain waits while there is no room, and releases the lock meanwhile, so that all threads that wait
  // have the same chance. It returns null if the session is lost.
  std::byte* ReserveMain(size_t bytes, std::unique_lock<std::mutex>& lock) {
    return bytes <= main_room_.size() ? main_room_.data() : AwaitMainRoom(bytes, lock);
  }
  virtual void PublishMain(size_t bytes) = 0;
  // To be called before a wait for what posted records do, unless it is a wait for a reply: a host whose processors are crowded
  // lets records gather for a moment. Any thread.
  virtual void HurryMain() {}
  // Records published so far. Any thread.
  uint64_t main_sequence() const { return main_sequence_.load(std::memory_order_acquire); }

  // Channels. A channel belongs to one thread from ReserveRequest until its last AwaitReply. ReserveRequest
  // returns null if the session is lost.
  virtual std::byte* ReserveRequest(uint32_t channel, size_t bytes) = 0;
  virtual void PublishRequest(uint32_t channel, size_t bytes) = 0;
  // Only where no memory is shared: the bytes of the staging buffer that the channel's next request lends lie at `bytes`, memory of
  // the program, and are sent from there and received there. They are lent until AwaitReply has returned the reply, or has said
  // that the session is lost: its caller asks for each reply, also after a loss. What is not there faults in any thread.
  virtual void LendOwn(uint32_t channel, std::byte* bytes);
  // Waits for the next reply, which is valid until the next AwaitReply of that channel. An empty view: the
  // session is lost.
  virtual std::span<const std::byte> AwaitReply(uint32_t channel, ReplyWait wait = {}) = 0;
  // Whether AwaitReply would return at once.
  virtual bool ReplyReady(uint32_t channel) = 0;

  // The newest error of a posted call: count << 32 | CUresult. 0: there was none yet. Any thread.
  uint64_t AsyncError() const { return LoadAcquire(async_error_); }

  // True: the host maps the region, so the GPU can reach pinned memory and nothing is copied for it.
  bool shares_memory() const { return shares_memory_; }
  // Why the session was lost; empty while it lives. Any thread.
  virtual std::string LossReason() = 0;

 protected:
  // `async_error` is the word of AsyncError. It need not be written before a record is published, and
  // outlives this object.
  ClientTransport(const HotWord& async_error, bool shares_memory)
      : async_error_(async_error), shares_memory_(shares_memory) {}
  // ReserveMain, where the room that is known of does not suffice. Afterwards main_room_ is what is known.
  virtual std::byte* AwaitMainRoom(size_t bytes, std::unique_lock<std::mutex>& lock) = 0;

  const HotWord& async_error_;
  const bool shares_memory_;
  // Every post writes these two, so threads' channels have nothing on their line. The main lock guards them.
  alignas(kHotBytes) std::span<std::byte> main_room_;  // where the next record goes; nothing there is in use
  std::atomic<uint64_t> main_sequence_{0};
};

inline void ClientTransport::LendOwn(uint32_t, std::byte*) {
  abort();  // the caller knows that memory is shared
}

// kStopped: Stop() was called, or the connection ended. kCorrupt: the peer broke the format.
enum class ReceiveStatus { kRecord, kStopped, kCorrupt };

// The host's end. The dispatcher alone uses the submission queue, and one thread each channel, except where
// a comment says otherwise.
class ServerTransport {
 public:
  virtual ~ServerTransport() = default;

  // Waits for the next record. The view is a copy that the guest cannot change, valid until the next Receive
  // of the same link.
  virtual ReceiveStatus ReceiveMain(std::span<const std::byte>* record) = 0;
  // The record is executed: its room returns to the guest.
  virtual void DoneMain() = 0;
  // The record was copied, and its room returns; another thread executes it, and says so by ExecutedMain,
  // which any thread may call.
  virtual void HandedMain() = 0;
  virtual void ExecutedMain(uint64_t sequence) = 0;
  // Whether ReceiveMain would return at once.
  virtual bool MainReady() = 0;

  virtual ReceiveStatus ReceiveRequest(uint32_t channel, std::span<const std::byte>* record) = 0;
  // Whether ReceiveRequest would return at once.
  virtual bool RequestReady(uint32_t channel) = 0;
  virtual void DoneRequest(uint32_t channel) = 0;

  // Room for a reply of up to `bytes`; null when the session stops. The caller reserves no more than the
  // reply needs: the guest may have sent several requests ahead, and it reads no reply before it has room
  // for its next request.
  virtual std::byte* ReserveReply(uint32_t channel, size_t bytes = kMaxChannelRecordBytes) = 0;
  virtual void PublishReply(uint32_t channel, size_t bytes) = 0;

  // Tells the guest of the failure of a posted call (ClientTransport::AsyncError). Any thread.
  virtual void PostAsyncError(uint32_t result) = 0;
  // The staging buffer that a request lends; empty if the request names memory that is not the session's.
  virtual std::span<std::byte> BulkOf(uint32_t channel, const RecordHeader& header) = 0;

  virtual bool shares_memory() const = 0;
  // Ends every wait, now and later. Any thread.
  virtual void Stop() = 0;
  // How the peer broke the format, after kCorrupt. Lives as long as the program.
  virtual const char* CorruptReason() const = 0;
};

}  // namespace causeway
