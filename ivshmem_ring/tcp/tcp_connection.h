// SPDX-License-Identifier: Apache-2.0
// Frames on one stream socket, which TcpClient and TcpServer (tcp_transport.h) read and write.
//
//   frame = FrameHeader | record (RecordHeader and body) | bytes of a staging buffer ("bulk")
//
// Where both sides agreed on it, bulk bytes may be compressed (bulk_compressor.h), and each side says how fast the other's arrive.
//
// A connection may go on over another socket after it was lost (resumption.h). The frames' bytes then form one stream over all its sockets,
// of which none is missing and none comes twice, and who sends and receives frames does not notice.
#pragma once
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "ivshmem_ring/compression/bulk_compressor.h"
#include "ivshmem_ring/tcp/resumption.h"
#include "ivshmem_ring/tcp/stream_layer.h"
#include "ivshmem_ring/transport/record.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway {

inline constexpr uint32_t kMainLink = 0xffffffff;

enum class FrameKind : uint32_t {
  kRecord = 1,      // both ways: a record follows, then its bulk bytes
  kAsyncError = 2,  // host -> guest: 8 bytes follow, the word of ClientTransport::AsyncError
  kBeat = 3,        // host -> guest: nothing follows; the frame shows that the host lives
  kMainDone = 4,    // host -> guest: 8 bytes follow, how many bytes of posted records were executed so far
  // Where the connection can go on over another socket:
  kAcknowledge = 5,  // both ways: 8 bytes follow, how many bytes of the other's frames were received so far
  kGoodbye = 6,      // both ways: nothing follows, not even another frame: the sender ends the session
  // Where both sides can compress:
  kCompressed =
      7,  // both ways: as kRecord, but a length and a block (bulk_compressor.h) in the place of so many bulk bytes, at least 1
  kArrivalRate = 8,  // both ways: 8 bytes follow, how many of the other's bulk bytes arrive in a second
};

// A queue holds as much as the ring would hold that shared memory has in its place, and a record counts as it
// would there (RoomOf), so that small records are bounded in number too. The host sends kMainDone each time that it has executed this much more.
inline constexpr uint64_t kMainCreditBytes = 64u << 10;

// So much waits at most for a frame that has to be sent (TcpConnection::Put).
inline constexpr size_t kBatchBytes = 32u << 10;

struct FrameHeader {
  uint32_t link;  // kMainLink for the submission queue, or a channel's number
  uint32_t record_bytes;
  uint32_t bulk_bytes;
  FrameKind kind;
};
static_assert(sizeof(FrameHeader) == 16);

// The memory of a session's staging buffers, one behind the other and all zero. Pages that are never touched take no memory.
class BulkMemory {
 public:
  // Throws std::bad_alloc.
  BulkMemory();
  ~BulkMemory();
  BulkMemory(const BulkMemory&) = delete;
  BulkMemory& operator=(const BulkMemory&) = delete;
  // kBulkBytes of them. The caller has checked the number.
  std::byte* Buffer(uint32_t index) { return first_ + size_t{index} * kBulkBytes; }
  // All, from a boundary of 2 MiB on, so that the kernel can give it large pages.
  std::span<std::byte> all() { return {first_, size_t{kBulkBuffers} * kBulkBytes}; }

 private:
  void* mapped_;
  std::byte* first_;
};

// When the kernel asks whether an idle peer's machine is still there, and how often in vain before the connection ends.
struct KeepAlive {
  int idle_s;
  int interval_s;
  int probes;
};
// An idle peer whose machine vanished is noticed within 15 s, and so is one for which bytes wait (SecondsUnacknowledged). No
// TCP_USER_TIMEOUT: it would also end a session whose peer only stopped reading for a while (a full queue, a debugger).
inline constexpr KeepAlive kKeepAlive{.idle_s = 5, .interval_s = 3, .probes = 3};
// Nothing that is sent waits for more, and a peer whose machine vanished is noticed. Sockets that are not TCP's (a proxy's, a
// test's) refuse it and need none of it.
void SetTcpOptions(int socket, const KeepAlive& keep_alive);

// One stream socket. Any thread may send; one thread reads. Failures are sentences, never exceptions.
class TcpConnection {
 public:
  // Takes `fd` over and closes it in the end; it may be non-blocking. `layer` encrypts; null: nothing does.
  explicit TcpConnection(int fd, std::unique_ptr<StreamLayer> layer = nullptr);
  ~TcpConnection();
  TcpConnection(const TcpConnection&) = delete;
  TcpConnection& operator=(const TcpConnection&) = delete;

  // Before anything is sent or received: from now on the connection survives the loss of its socket. `lost` and `closing_ends` are
  // Resumption's. In all that follows "cannot be used any more" means then that End was called, or that the peer has closed.
  void MakeResumable(std::function<void()> lost, bool closing_ends);
  bool resumable() const { return resumption_ != nullptr; }
  // The same, because the peer can do it, too: bulk bytes are compressed where that pays. Throws std::bad_alloc. `assumed_rate` is
  // Compression's.
  void MakeCompressing(uint64_t assumed_rate);
  bool compresses() const { return compressor_ != nullptr; }
  // The frame kArrivalRate has come with that number.
  void TakeArrivalRate(uint64_t rate) { compressor_->NoteRate(rate); }

  // Sends one whole frame, and waits for room in the socket. The result is empty, or a sentence that says why
  // the connection cannot be used any more. Of a resumable one `bulk` stays as it is until the peer has it, unless it was compressed,
  // and record and header are copied; it waits where the peer has not acknowledged SentBytes' limits, but not because the connection is down.
  // *sent becomes how many bytes of frames that were then; 0 where the connection is not resumable.
  std::string Send(const FrameHeader& header, std::span<const std::byte> record,
                   std::span<const std::byte> bulk, uint64_t* sent = nullptr);
  // The same for a frame without bulk bytes that need not be sent at once: it is copied behind those that wait for the next Send,
  // which sends them before its own. False: there is no room for it, and nothing was copied. It never waits for the socket.
  bool Put(const FrameHeader& header, std::span<const std::byte> record);
  // Sends what waits, as far as that needs no waiting, for which a thread that has to read has no time. True: something waited, and
  // perhaps some of it still does. *failure is what Send would return.
  bool Flush(std::string* failure);
  // Sends a beat, unless the socket still has bytes to send, which show the peer as much. Never waits.
  void SendBeat();

  // What was received and not consumed yet; valid until the next Fill or OpenReceived. There is room for any frame and its record.
  std::span<const std::byte> buffered() const { return std::span(buffer_).subspan(begin_, end_ - begin_); }
  void Consume(size_t bytes) { begin_ += bytes; }
  // Receives more into the buffer. It spins, yields and then sleeps for it; `policy` null: it does not wait. kEnded: reason()
  // says why no more comes.
  enum class Filled { kSome, kNothing, kEnded };
  Filled Fill(const WaitPolicy* policy);
  // Moves what was received, but not opened by the layer yet, into the buffer. False: there is no such thing.
  bool OpenReceived();
  // Waits until `out` is filled: with what is buffered, then directly from the socket. What `buffered` gave before stays as it
  // is. False: reason() says why.
  bool Read(std::span<std::byte> out);
  // The same for bulk bytes of that frame, which are as many as its header says and `out` has, kBulkBytes at most. kMalformed: what has
  // come is not theirs, and part of `out` may have changed.
  enum class BulkRead { kWhole, kEnded, kMalformed };
  BulkRead ReadBulk(const FrameHeader& frame, std::span<std::byte> out);
  const std::string& reason() const { return reason_; }
  // For how many seconds the peer's machine has acknowledged nothing although bytes wait for that. A program that does not read is no
  // such peer: its machine says that it has no room. One thread calls this, once a second.
  uint32_t SecondsUnacknowledged();
  // So many, and the peer's machine counts as gone. Keep-alive, which the kernel sends only where nothing waits, takes as long.
  static constexpr uint32_t kMostUnacknowledged = 12;
  // Counts the calls of Fill and Read that have received something. Any thread.
  uint64_t receipts() const { return receipts_.load(std::memory_order_relaxed); }
  // Called each second in which nothing comes, by the thread that waits in Fill or Read. To be set before anything is received.
  void WhileNothingComes(std::function<void()> idle) { idle_ = std::move(idle); }
  // For epoll. It stays the same when another socket comes in its place.
  int fd() const { return fd_; }

  // Ends every Send and Read, now and later. Any thread may call it.
  void Shutdown();
  // After it: waits until nobody sends, or looks at what was to be sent again. Not by a thread that does.
  void AwaitSenders() { const std::lock_guard lock(send_mutex_); }

  // The rest is of resumable connections alone.
  // Its socket is of no use any more, because of `why`. Any thread.
  void Break(const std::string& why);
  bool down() const { return resumption_ != nullptr && resumption_->down(); }
  // The frame kAcknowledge has come with that number. False: nobody has sent so much.
  bool TakeAcknowledgement(uint64_t received) { return resumption_->Acknowledge(received); }
  // An answer shows that the peer has received what Send's *sent counts: none of it is looked at any more, even to be sent again.
  void NoteAnswered(uint64_t sent) {
    if (sent != 0) (void)resumption_->Acknowledge(sent);
  }
  // Tells the peer what was received if it was not told of much, without waiting. Once a second.
  void AcknowledgeSoon();
  // Tells the peer that this side ends the session, without waiting. Nothing is sent any more, and no other socket comes.
  void SayGoodbye();
  // The keeper's (link_keeper.h), in turns. Waits until the socket is lost and nobody reads from it, and says when it was lost and how much
  // was received by then; otherwise as Resumption::AwaitParked.
  Resumption::Parked AwaitLoss(uint64_t grace_us, uint64_t* received, uint64_t* lost_us);
  // Takes `fd` and `layer` in the place of what it has, sends what the peer has not received, and goes on. False: the peer cannot have
  // received that many bytes, and nothing was taken. Meanwhile nobody may watch fd().
  bool GoOn(int fd, std::unique_ptr<StreamLayer> layer, uint64_t peer_received);
  // Why it is down or over.
  std::string why_lost() { return resumption_->why(); }

 private:
  // Bulk bytes as they leave. They lie in `compressed`, where that has any.
  struct Bulk {
    std::span<const std::byte> bytes;
    CompressedBulk compressed;
  };
  // These have send_mutex_ held. `waits`: for room in the socket; otherwise the rest becomes unsent_. `bulk` is as in Send.
  std::string SendBehindWaiting(std::span<const std::span<const std::byte>> parts, Bulk bulk, bool waits);
  std::string KeepAndSend(std::span<const std::span<const std::byte>> parts, Bulk bulk, bool waits);
  std::span<const std::byte> MakeAcknowledgement();
  std::span<const std::byte> MakeArrivalRate(uint64_t rate);
  std::string SendAll(std::span<const std::span<const std::byte>> parts, bool waits);
  std::string SealAndSend(std::span<const std::span<const std::byte>> parts, bool waits);
  std::string SendRaw(std::span<const std::span<const std::byte>> parts, bool waits);
  bool SendUnsent(bool waits, std::string* failure);  // true: there is none any more
  // True: it was sent whole. Otherwise *failure, or the socket is full and the parts' rest lies in `vectors`.
  bool SendVectors(std::span<iovec>* vectors, bool waits, std::string* failure);
  // As recv: 0 at the end of the stream, -1 and EAGAIN where nothing came. `policy` as in Fill. `whole`: all of `out` comes, and the
  // peer waits for nothing before.
  ssize_t Receive(std::span<std::byte> out, const WaitPolicy* policy, bool whole = false);
  ssize_t ReceiveRaw(std::span<std::byte> out, const WaitPolicy* policy, int flags);
  // The same, of which the time counts where ReadMeasured wants to know it.
  ssize_t ReceiveMeasured(std::span<std::byte> out, const WaitPolicy* policy, int flags);
  // Read, of which the time tells how fast the link is where at least so many bytes have to be waited for.
  bool ReadMeasured(std::span<std::byte> out, size_t least);
  // The room behind what is buffered, which it moves to the beginning where that is necessary.
  std::span<std::byte> MakeRoom();
  // The same for what follows bulk bytes, which is probably a small record and bulk bytes again: they are to be received where they
  // belong, and not here first.
  std::span<std::byte> MakeRoomBehindBulk();
  // After Receive has given `received`, which is not positive.
  void NoteEnd(ssize_t received);
  // The same; true: the connection has gone on over another socket since.
  bool GoesOn(ssize_t received);
  bool PeerHasClosed(ssize_t received) const;
  void NoteReceived(size_t bytes);
  static void PrepareSocket(int fd);
  static void BoundSends(int fd);

  static constexpr size_t kBufferBytes = 128u << 10;
  // Of what is sent at once: an acknowledgement, a rate, what waits, and those of a frame.
  static constexpr size_t kMostParts = 6;

  const int fd_;
  std::unique_ptr<StreamLayer> layer_;          // another one after GoOn, while nobody sends or receives
  std::unique_ptr<Resumption> resumption_;      // null: the connection ends with its socket
  std::unique_ptr<BulkCompressor> compressor_;  // null: nothing is compressed
  std::function<void()> idle_;
  std::mutex send_mutex_;  // held while bytes go to the socket; locked before waiting_mutex_
  std::vector<std::byte> sealing_, sealed_;  // guarded by send_mutex_, as are the next four
  std::vector<std::byte> leaving_;           // what Put had copied and is being sent
  std::vector<std::byte> unsent_;            // of the socket's bytes: what Flush found no room for
  struct WordFrame {
    FrameHeader header;
    uint64_t value;
  };
  static_assert(sizeof(WordFrame) == sizeof(FrameHeader) + sizeof(uint64_t));
  WordFrame acknowledgement_{}, arrival_rate_{};
  std::mutex waiting_mutex_;              // held for a copy
  std::vector<std::byte> waiting_;        // what Put has copied
  std::atomic<size_t> waiting_bytes_{0};  // of waiting_; written with waiting_mutex_
  std::vector<std::byte> wire_;           // received and not yet opened by the layer
  std::vector<std::byte> buffer_;         // [begin_, end_) was received and not yet read
  size_t begin_ = 0;
  size_t end_ = 0;
  bool behind_bulk_ = false;
  std::string reason_;
  bool layer_ended_ = false;  // the layer takes nothing more; the reading thread's
  std::atomic<uint64_t> receipts_{0};
  uint64_t* waited_us_ = nullptr;              // the reading thread's: for how long it was in the socket
  std::atomic<uint64_t> rate_to_tell_{0};      // of the peer's bulk bytes, with the next frame; 0: none
  std::atomic<uint32_t> unacknowledged_s_{0};  // of this socket
};

}  // namespace causeway
