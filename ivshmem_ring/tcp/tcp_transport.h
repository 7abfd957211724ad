// SPDX-License-Identifier: Apache-2.0
// The transport (ivshmem_ring/transport/transport.h, which has the contracts) over one stream socket for each
// session. The frames are in ivshmem_ring/tcp/tcp_connection.h; the caller has done the set-up before them
// (OpenBlock, LocalReply).
//
// Staging buffers do not lie in shared memory here: RecordHeader::bulk_offset is the number of one of the
// client's kBulkBuffers buffers. Its bytes follow the request if kBulkToHost is set, and come back with the
// reply if kBulkToGuest is set. A buffer is lent from its request to the reply, so the server never holds
// more than kBulkBuffers of them either.
//
// A posted record may wait in the client for others, which leave together with it: for FrameReader::kRemindUs at most, and never
// longer than until the next request.
//
// Where both sides agreed on it when the session was opened (messages/resume_messages.h), the session goes on over another socket when its
// own is lost: link_keeper.h has the thread that gets one, for the guest by dialling and for the host from what is offered to it.
//
// Where both agreed on it likewise (messages/resume_messages.h), bulk bytes travel compressed where the link is slow and they shrink.
//
// Order: a client sends posted records before any request that is stamped with their count. The server may
// therefore stop reading while the queue of one link is full: all for which that link waits was read before.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ivshmem_ring/tcp/frame_reader.h"
#include "ivshmem_ring/tcp/link_keeper.h"
#include "ivshmem_ring/tcp/tcp_connection.h"
#include "ivshmem_ring/transport/flight_recorder.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/transport.h"

namespace causeway {

// How a client connects again, and for how long it tries, 0: a lost connection ends the session.
struct ConnectAgain {
  Redial::Dial dial;
  uint32_t grace_s = 0;
};

// For how long a server's session waits for its guest when the connection is lost, 0: it ends; and who is told that it waits, and
// that it goes on. Any thread of the server calls that.
struct WaitForGuest {
  uint32_t grace_s = 0;
  std::function<void(bool waits)> tell = [](bool) {};
};

// A queue that allocates nothing once it has had its usual length. Not thread-safe.
template <class Entry>
class ShortQueue {
 public:
  bool empty() const { return first_ == entries_.size(); }
  void Push(const Entry& entry) { entries_.push_back(entry); }
  Entry Pop() {
    if (empty()) abort();  // the caller has pushed it
    const Entry entry = entries_[first_++];
    // A peer that never lets it become empty does not let it grow.
    if (empty() || first_ == kMostTaken) {
      entries_.erase(entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(first_));
      first_ = 0;
    }
    return entry;
  }

 private:
  static constexpr size_t kMostTaken = 64;
  std::vector<Entry> entries_;  // from first_ on; those before were taken
  size_t first_ = 0;
};

class TcpClient final : public ClientTransport, private FrameSink {
 public:
  // Takes over `fd`, a connected stream socket, and `layer`, which encrypts; null: nothing does. Nothing is read before the first
  // record is published.
  explicit TcpClient(int fd, std::unique_ptr<StreamLayer> layer = nullptr, ConnectAgain again = {},
                     Compression compression = {});
  // Ends the connection. No other thread may be inside a call then.
  ~TcpClient() override;

  // Staging buffer `index` (below kBulkBuffers), of kBulkBytes, which lives as long as the client. A request
  // names it by bulk_offset = index. Any thread.
  std::byte* BulkBuffer(uint32_t index);
  // The program ends: the host need not wait for it. Other threads may still be inside a call.
  void SayGoodbye();

  void PublishMain(size_t bytes) override;
  std::byte* ReserveRequest(uint32_t channel, size_t bytes) override;
  void PublishRequest(uint32_t channel, size_t bytes) override;
  void LendOwn(uint32_t channel, std::byte* bytes) override;
  std::span<const std::byte> AwaitReply(uint32_t channel, ReplyWait wait = {}) override;
  bool ReplyReady(uint32_t channel) override;
  std::string LossReason() override;

 protected:
  std::byte* AwaitMainRoom(size_t bytes, std::unique_lock<std::mutex>& lock) override;

 private:
  struct Channel;
  Channel& At(uint32_t index);
  void StartReader();
  May MayCome(const FrameHeader& frame) override;
  Taken Take(const FrameHeader& frame, std::span<const std::byte> record) override;
  void Ended(const std::string& reason) override;
  void Tick() override;
  bool Reminded() override;
  bool HasMainRoom(size_t bytes) const;  // as far as is known without looking
  // The result is empty, or says why the session is over.
  std::string TakeReply(const FrameHeader& frame, std::span<const std::byte> record);
  void Lose(const std::string& reason);
  // After a loss: nobody sends from the memory that the channel's requests have lent any more, nor receives there. `lock` holds the
  // reader's mutex, and has released it afterwards.
  void TakeBackOwn(Channel& channel, std::unique_lock<std::mutex>& lock);

  TcpConnection connection_;
  const int process_;  // the process that made the client: a forked child must not end its connection
  std::once_flag reader_started_;
  uint64_t seen_receipts_ = 0;  // of the connection, at the last Tick
  uint32_t quiet_seconds_ = 0;  // since they grew
  std::vector<std::byte> main_buffer_;
  uint64_t known_done_bytes_ = 0;  // main_done_bytes_, when it was looked at; guarded as the next one is
  uint64_t main_sent_bytes_ = 0;   // guarded by the session's main lock, like all of the submission queue
  std::condition_variable room_;
  uint64_t main_done_bytes_ = 0;  // the host's last kMainDone; guarded by the reader's mutex
  HotWord async_error_{};         // the host's last kAsyncError
  std::unique_ptr<Channel> channels_[kChannelCount];
  BulkMemory bulk_;
  std::atomic<bool> lost_{false};
  std::mutex loss_mutex_;
  std::string loss_;
  FrameReader reader_;  // its thread uses the others
  const std::unique_ptr<Redial> redial_;
  std::unique_ptr<LinkKeeper>
      keeper_;  // last, as its thread uses the others; null: the session ends with its connection
};

class TcpServer final : public ServerTransport, private FrameSink {
 public:
  // Takes over `fd`, a connected stream socket. `flight` receives the
  // times of messages; null: nothing is recorded. `layer` encrypts; null: nothing does.
  explicit TcpServer(int fd, FlightImage* flight = nullptr, std::unique_ptr<StreamLayer> layer = nullptr,
                     WaitForGuest waiting = {}, Compression compression = {});
  // Ends the connection. No other thread may be inside a call then.
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
  // The memory that BulkOf gives, so that it can be made known to the driver. It lives as long as the server.
  std::span<std::byte> StagingMemory() { return bulk_.all(); }
  const char* CorruptReason() const override { return corrupt_reason_.load(std::memory_order_acquire); }

  // Where it waits for lost guests; otherwise these end the session. Any thread.
  bool waits() const { return keeper_ != nullptr; }
  // The connection is lost, as another process says.
  void Break(const std::string& why);
  // The session ends on purpose: the guest need not try to come back. Other threads may still be inside a call.
  void SayGoodbye();
  // The guest has made another connection, which takes the place of what there is.
  void Offer(Offers::Take take);
  // Why a session that waited has ended; empty: it has not, or for another reason.
  std::string EndReason();

 private:
  struct Message;
  struct Unanswered;
  struct Link;
  Link& At(uint32_t index);
  ReceiveStatus Receive(uint32_t index, Link& link, std::span<const std::byte>* record);
  void Done(Link& link);
  bool Ready(Link& link);
  May MayCome(const FrameHeader& frame) override;
  Taken Take(const FrameHeader& frame, std::span<const std::byte> record) override;
  void Ended(const std::string& reason) override;
  void Tick() override;
  bool BackSoon() const override { return back_soon_; }
  bool TakeBulk(const FrameHeader& frame, const RecordHeader& header, Message* message);
  Link& LinkOf(const FrameHeader& frame) { return frame.link == kMainLink ? *main_ : *channels_[frame.link]; }
  bool Corrupt(const char* reason);
  void GiveUp(const std::string& why);
  // Says whether the session waits for its guest now, if that is not what was said last.
  void TellWaiting();

  TcpConnection connection_;
  std::function<void(bool waits)> tell_;  // of WaitForGuest
  std::mutex tell_mutex_;                 // locked after TcpConnection's
  bool told_waiting_ = false;             // guarded by it
  FlightRecorder flight_;
  std::unique_ptr<Link> main_;
  std::unique_ptr<Link> channels_[kChannelCount];
  BulkMemory bulk_;
  // A buffer is free, then lent by the reader, then replying by the channel's thread, then free again. A channel's thread may receive
  // further requests before it answers one, as over shared memory.
  enum class BulkState { kFree, kLent, kReplying };
  std::atomic<BulkState> bulk_state_[kBulkBuffers]{};
  std::mutex async_mutex_;  // locked before TcpConnection's, so that the newest error is sent last
  uint64_t async_errors_ = 0;
  uint64_t main_done_bytes_ = 0;  // executed so far; the dispatcher's
  uint64_t main_told_bytes_ = 0;  // as in the last kMainDone
  bool back_soon_ = false;        // the newest request waits for nothing; guarded by the reader's mutex
  std::atomic<bool> stop_{false};
  std::atomic<const char*> corrupt_reason_{""};
  std::mutex end_mutex_;
  std::string end_reason_;
  FrameReader reader_;  // its thread uses the others
  Offers offers_;
  std::unique_ptr<LinkKeeper>
      keeper_;  // last, as its thread uses the others; null: the session ends with its connection
};

}  // namespace causeway
