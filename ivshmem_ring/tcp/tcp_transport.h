// SPDX-License-Identifier: Apache-2.0
// The seam of ivshmem_ring/transport/transport.h over one stream socket per session: correct, not tuned. The
// frames are in ivshmem_ring/tcp/tcp_connection.h; the set-up before them (OpenBlock, LocalReply) is the
// caller's.
//
// Bulk buffers do not lie in shared memory here: RecordHeader::bulk_offset is the number of one of the
// client's kBulkBuffers buffers. Its bytes follow the request if kBulkToHost is set, and come back with the
// reply if kBulkToGuest is. A buffer is lent from its request to that request's reply, so the server never
// holds more than kBulkBuffers of them either.
//
// Order: a client sends main records before any request stamped with their count. The server may therefore
// stop reading while one link's queue is full: everything that the full link waits for was read before.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ivshmem_ring/tcp/tcp_connection.h"
#include "ivshmem_ring/transport/flight_recorder.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/transport.h"

namespace causeway {

class TcpClient final : public ClientTransport {
 public:
  // Owns `fd`, a connected stream socket. Nothing is read before the first publishing.
  explicit TcpClient(int fd);
  // Ends the connection. No other thread may be inside a call.
  ~TcpClient() override;

  // Buffer `index` (below kBulkBuffers) of kBulkBytes; made when first asked for. A request names it by
  // bulk_offset = index.
  std::byte* BulkBuffer(uint32_t index);

  std::byte* ReserveMain(size_t bytes, std::unique_lock<std::mutex>& lock) override;
  void PublishMain(size_t bytes) override;
  uint64_t main_sequence() const override { return main_sequence_.load(std::memory_order_acquire); }
  std::byte* ReserveRequest(uint32_t channel, size_t bytes) override;
  void PublishRequest(uint32_t channel, size_t bytes) override;
  std::span<const std::byte> AwaitReply(uint32_t channel, ReplyWait wait = {}) override;
  bool ReplyReady(uint32_t channel) override;
  uint64_t AsyncError() const override { return async_error_.load(std::memory_order_acquire); }
  bool shares_memory() const override { return false; }
  std::string LossReason() override;

 private:
  struct Channel;
  Channel& At(uint32_t index);
  void StartReader();
  void ReadFrames();
  // One frame after its header. Empty, or why the session is over.
  std::string ReadReply(const FrameHeader& frame);
  std::string ReadBytes(std::span<std::byte> out);
  void Lose(const std::string& reason);

  TcpConnection connection_;
  const int process_;  // a forked child must not end its parent's connection
  std::once_flag reader_started_;
  std::thread reader_;
  uint32_t quiet_seconds_ = 0;  // of the reader
  std::vector<std::byte> main_buffer_;
  std::atomic<uint64_t> main_sequence_{0};
  uint64_t main_sent_bytes_ = 0;  // guarded, as all of the main link, by the session's main lock
  std::mutex room_mutex_;
  std::condition_variable room_;
  uint64_t main_done_bytes_ = 0;  // what the host has told; guarded by room_mutex_
  std::atomic<uint64_t> async_error_{0};
  std::unique_ptr<Channel> channels_[kChannelCount];
  std::mutex bulk_mutex_;
  BulkMemory bulk_[kBulkBuffers];
  std::atomic<bool> lost_{false};
  std::mutex loss_mutex_;
  std::string loss_;
};

class TcpServer final : public ServerTransport {
 public:
  // Owns `fd`, a connected stream socket, and reads from it at once. `flight`: where it notes its times.
  explicit TcpServer(int fd, FlightImage* flight = nullptr);
  // Ends the connection. No other thread may be inside a call.
  ~TcpServer() override;

  ReceiveStatus ReceiveMain(std::span<const std::byte>* record) override;
  void DoneMain() override;
  void HandedMain() override;
  void ExecutedMain(uint64_t sequence) override;
  bool MainReady() override;
  ReceiveStatus ReceiveRequest(uint32_t channel, std::span<const std::byte>* record) override;
  bool RequestReady(uint32_t channel) override;
  void DoneRequest(uint32_t channel) override;
  std::byte* ReserveReply(uint32_t channel, size_t bytes = kMaxChannelRecordBytes) override;
  void PublishReply(uint32_t channel, size_t bytes) override;
  void PostAsyncError(uint32_t result) override;
  std::span<std::byte> BulkOf(uint32_t channel, const RecordHeader& header) override;
  bool shares_memory() const override { return false; }
  void Stop() override;
  const char* CorruptReason() const override { return corrupt_reason_.load(std::memory_order_acquire); }

 private:
  struct Message;
  struct Link;
  Link& At(uint32_t index);
  ReceiveStatus Receive(uint32_t index, Link& link, std::span<const std::byte>* record);
  void Done(Link& link);
  bool Ready(Link& link);
  void ReadFrames();
  // One frame after its header. False: the session is over.
  bool ReadMessage(const FrameHeader& frame);
  bool ReadBulk(const FrameHeader& frame, const RecordHeader& header, Message* message);
  // Waits for room in the link's queue. False: the session is over.
  bool Queue(Link& link, Message message);
  bool ReadBytes(std::span<std::byte> out);
  bool Corrupt(const char* reason);

  TcpConnection connection_;
  FlightRecorder flight_;
  std::unique_ptr<Link> main_;
  std::unique_ptr<Link> channels_[kChannelCount];
  BulkMemory bulk_[kBulkBuffers];
  // A buffer goes free -> lent (the reader) -> replying (the link's thread) -> free, when its reply is sent.
  enum class BulkState { kFree, kLent, kReplying };
  std::atomic<BulkState> bulk_state_[kBulkBuffers]{};
  std::mutex async_mutex_;  // before TcpConnection's: the newest error is sent last
  uint64_t async_errors_ = 0;
  uint64_t main_done_bytes_ = 0;  // the dispatcher's
  uint64_t main_told_bytes_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<const char*> corrupt_reason_{""};
  std::thread reader_;
};

}  // namespace causeway
