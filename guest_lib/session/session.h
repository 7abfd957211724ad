// SPDX-License-Identifier: Apache-2.0
// This process's session with the host. cuInit makes it, and it ends with the process. Everything that is
// sent goes through the classes below: PendingPost for asynchronous messages, PendingCall and ChannelLease
// for synchronous ones. Generic rows use them through Remote (guest_lib/stream/remote.h).
//
// Errors are CUresult, as the program gets them. Any thread may use the session; a channel belongs to one
// thread at a time. Locks: guest_lib/process/lock_order.h. No message is waited for with the main lock held.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <atomic>
#include <bit>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "guest_lib/connection/connection.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/handles.h"
#include "guest_lib/session/submissions.h"
#include "ivshmem_ring/messages/session_messages.h"
#include "ivshmem_ring/protocol/call.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/transport.h"

namespace causeway::guest {

class RegionMemory;
class Session;

// What higher folders of the library have to do at moments that only the session sees. The file that a
// comment names sets its hook once, while the library is loaded. So a hook is there before any session, and
// reading it needs no memory order.
struct Hooks {
  // region_memory.cc: agrees with the worker on addresses, makes the memory that both sides share, and places
  // the staging buffers in it where there is some. It is called when the connection is there and no other
  // thread knows of it, and may send messages. An error that it returns has been written to stderr.
  CUresult (*prepare_memory)(Connection& connection, Bulk* bulks, RegionMemory** memory) = nullptr;
  void (*free_held_memory)() = nullptr;  // freed_memory.cc: see FreeHeld
  void (*free_held_blocks)() = nullptr;  // freed_blocks.cc: see FreeBlocks
  // posted_copy.cc: returns the staging buffers that are in flight no more. It is called before a buffer is
  // sought while some are taken.
  void (*reclaim_buffers)(Session&) = nullptr;
  // posted_copy.cc and completion.cc: take words of memory that was registered with the driver before any work
  // existed. The GPU writes them: one for each staging buffer, and one for each of the streams that have one.
  void (*use_buffer_words)(HotWord* words) = nullptr;
  void (*use_stream_words)(HotWord* words) = nullptr;
  // host_pool.cc: gives back what was freed to pools on the host and is no longer used. False: nothing was.
  bool (*reclaim_freed)() = nullptr;
  // memory.cc: end all memory of a context that ends, and send messages. Registrations end while the context
  // is still active; the rest ends when the host has ended the context and nothing can use it any more.
  void (*context_ends)(Object* context) = nullptr;
  void (*context_ended)(const Object* context) = nullptr;
  // logs.cc: takes a line of the driver's log, of CUlogLevel `level`.
  void (*deliver_log)(uint32_t level, const char* text, size_t bytes) = nullptr;
};
inline constinit Hooks hooks;

// FreeHeld frees on the host the stream-ordered memory that the program has freed and that this library keeps
// for the next allocation (freed_memory.h). It is called before synchronous messages, and where a stream,
// pool or context ends on which such memory depends.
inline std::atomic<size_t> held_frees{0};
inline bool AnyHeld() {
  return held_frees.load(std::memory_order_acquire) != 0;
}
inline void FreeHeld() {
  if (AnyHeld()) hooks.free_held_memory();
}
// FreeBlocks does the same for memory of cuMemAlloc (freed_blocks.h). It is called before any message: with
// the main lock held before a record is posted, and after a synchronous call was counted (Submissions::NoteCall)
// and before it is sent.
inline std::atomic<uint32_t> held_blocks{0};
inline bool HoldsBlocks() {
  return held_blocks.load() != 0;  // partner: HoldFreedBlock
}
inline void FreeBlocks() {
  if (HoldsBlocks()) hooks.free_held_blocks();
}

// To be called when an image is loaded whose kernels may print. Their text comes out when the program
// synchronises, so from then on no synchronising call is answered in the guest, and requests ask the host to
// look for text (kMayPrint).
inline std::atomic<bool> may_print{false};
inline void NotePrintingKernels() {
  may_print.store(true, std::memory_order_release);
}
inline bool MayKernelsPrint() {
  return may_print.load(std::memory_order_acquire);
}

// For Session::Get and Session::Made; the latter is never null again.
inline constinit std::atomic<Session*> the_session{nullptr}, made_session{nullptr};

class Session {
 public:
  // The process's session. Null before cuInit, after a failed cuInit, in a forked child, and once the process
  // ends, which another thread may bring about at any time. The object itself is never destroyed.
  static Session* Get() { return the_session.load(std::memory_order_acquire); }
  // The same for code that runs only after Get() was not null. The session stays readable until the process
  // is gone, and what is sent after its end fails.
  static Session& Made() { return *made_session.load(std::memory_order_acquire); }
  // The work of cuInit: connects to the host and opens the session, once; later calls return the same result.
  // It never throws, and every wait in it is bounded.
  static CUresult Open();

  // To be called before anything is sent: CUDA_SUCCESS, or the sticky error, or an error of an earlier posted
  // call, which is returned once. `thread` is the calling thread's state. *context, which the caller has set to
  // 0, becomes the wire handle of the thread's current context if there is one;
  // CUDA_ERROR_CONTEXT_IS_DESTROYED while that context is not active.
  CUresult Check(const ThreadState& thread = ThisThread(), WireHandle* context = nullptr);
  // Remembers an error after which nothing works any more. Returns its argument.
  CUresult Note(CUresult result);
  CUresult sticky() const { return static_cast<CUresult>(sticky_.load(std::memory_order_relaxed)); }

  ClientTransport& transport() { return *connection_->transport; }
  Connection& connection() { return *connection_; }
  RegionMemory& memory() { return *memory_; }
  const OpenReply& host() const { return host_; }
  std::span<const DeviceDescription> devices() const { return devices_; }
  std::mutex& main_mutex() { return main_mutex_; }

  // The staging buffers of the session, kBulkBuffers of them. AcquireBulk waits while all are taken, so its
  // caller must have none, or two threads could wait for each other. TryAcquireBulk takes one only if no
  // more than `waiters` threads wait. Each taken buffer goes back by ReleaseBulk, from any thread.
  uint32_t AcquireBulk();
  bool TryAcquireBulk(uint32_t* index, uint32_t waiters = 0);
  void ReleaseBulk(uint32_t index);
  bool IsBulkAwaited() const { return bulk_waiters_.load(std::memory_order_relaxed) != 0; }
  Bulk bulk(uint32_t index) const { return bulks_[index]; }

  // Gives back the channel of a thread that ends.
  void ReleaseChannel(uint32_t channel) { channels_taken_.fetch_and(~(uint64_t{1} << channel)); }

  // Fetches text that kernels printed, on the given channel of the calling thread, and writes it to this
  // process's stdout and stderr.
  void FetchOutput(uint32_t channel);

 private:
  friend class ChannelLease;
  friend class PendingPost;
  CUresult Start();
  CUresult ReadDescription();
  CUresult Lost();

  std::unique_ptr<Connection> connection_;
  RegionMemory* memory_ = nullptr;  // lives as long as the process
  OpenReply host_{};
  std::vector<DeviceDescription> devices_;
  alignas(64) std::mutex main_mutex_;                    // every post changes this line
  alignas(64) std::atomic<uint64_t> channels_taken_{0};  // a bit for each channel; every call reads this line
  std::atomic<uint64_t> channels_opened_{1};             // the host opens channel 0 by itself
  // Of the one channel that all threads share that got none of their own.
  Mutex<Lock::kSharedChannel> shared_channel_mutex_;
  std::atomic<uint32_t> bulks_taken_{0};
  std::atomic<uint32_t> bulk_waiters_{0};
  Bulk bulks_[kBulkBuffers];
  std::atomic<uint32_t> sticky_{0};
  std::atomic<uint64_t> seen_async_error_{0};
};

// InitialisedOrError in short, for hot paths: false if it would be an error.
inline bool IsUsable(const ThreadState& thread) {
  return Session::Get() != nullptr && !thread.in_function;
}
// The error with which anything sent now would fail; CUDA_SUCCESS if it would not.
CUresult CheckSend();

// While one lives, what the calling thread sends is this library's own, such as a free that it has kept back: it is sent past an error that the
// program is still to be told, and leaves that for the program's own call. After a fault nothing is sent, as ever.
class OwnMessages {
 public:
  OwnMessages() : before_(ThisThread().past_errors) {
    const Session* session = Session::Get();
    if (session != nullptr && session->sticky() == CUDA_SUCCESS) ThisThread().past_errors = true;
  }
  ~OwnMessages() { ThisThread().past_errors = before_; }
  OwnMessages(const OwnMessages&) = delete;
  OwnMessages& operator=(const OwnMessages&) = delete;

 private:
  const bool before_;
};
// What the driver would answer to a call that captures forbid, for calls that are answered in the guest.
CUresult CheckUnsafeCall();
// CUDA_SUCCESS when the process is initialised and the calling thread has a context.
CUresult NeedContext();

// One asynchronous message: a record of the submission queue. While a stream of the process captures, the
// message is synchronous instead, since a capture makes errors of it that the program must see at the call.
//
// The caller writes the body by writer() and calls Finish. A body of up to kSmallBytes is gathered aside and
// put into the ring by Finish, so that filling it may send messages of its own (a per-thread stream is made
// at first use). A larger body is written in place with the main lock held from construction on, so filling
// it must not send.
class PendingPost {
 public:
  static constexpr size_t kSmallBytes = 1024;
  // The caller keeps `submission` for Finish, and may complete it until then; `body_bytes` bounds the body.
  explicit PendingPost(Op op, const Submission& submission = kNothingNamed, size_t body_bytes = kSmallBytes);
  PendingPost(Op op, Submission&& submission, size_t body_bytes = kSmallBytes) = delete;
  Writer& writer() { return writer_; }
  // Sends nothing if the body could not be written; the result is then the writer's error. With `sequence`
  // the message is posted even while a stream captures, and *sequence is its number in the submission queue.
  // `flags` are RecordFlags of a posted record.
  CUresult Finish(uint64_t* sequence = nullptr, uint16_t flags = 0);
  // Whether the message is synchronous after all.
  bool waits() const { return waits_; }

 private:
  CUresult Reserve(size_t body_bytes);
  CUresult FinishAndWait();

  ThreadState& thread_;  // the calling thread's; looking it up costs a call each time
  Session* session_ = nullptr;
  bool waits_ = false;
  MessageInFlight in_flight_;
  std::vector<std::byte> large_;  // the body of a large synchronous message
  [[no_unique_address]] NotedLock<Lock::kMain> held_;
  std::unique_lock<std::mutex> lock_;
  Op op_;
  const Submission& submission_;
  std::byte* record_ = nullptr;
  WireHandle context_ = 0;
  Writer writer_{{}};
  alignas(8) std::byte small_[kSmallBytes];
};

// The calling thread's RPC channel, for as long as the object lives. A thread makes one at a time.
class ChannelLease {
 public:
  ChannelLease();
  ~ChannelLease();
  ChannelLease(const ChannelLease&) = delete;
  ChannelLease& operator=(const ChannelLease&) = delete;

  // CUDA_SUCCESS, or the reason why nothing can be sent; then Begin gives a writer that has failed.
  CUresult error() const { return error_; }
  Session& session() { return *session_; }

  // Begins a request, Send sends it, Await waits for its reply. Requests may be sent ahead of their replies,
  // as many as there are staging buffers, and replies come in order. With several requests sent ahead
  // `body_bytes` must be small: their records together, and their replies, have to fit the rings.
  Writer Begin(size_t body_bytes = kMaxChannelRecordBytes - sizeof(RecordHeader));
  CUresult Send(Op op, const Writer& body, uint16_t flags = 0, uint64_t bulk_offset = 0,
                uint32_t bulk_bytes = 0, const Submission& submission = kNothingNamed);
  // Where no memory is shared: the bytes of the staging buffer that the next Send lends lie at `bytes`, memory of the program. They
  // are lent until Await has returned the reply or an error, so that each request that was sent wants its Await.
  void LendOwn(std::byte* bytes) { session_->transport().LendOwn(channel_, bytes); }
  // Waits for the next reply, and returns its result. The body is valid until the next Await.
  CUresult Await(Reader* body, uint32_t* bulk_bytes = nullptr);
  // The same for a request of which Send has returned `sent`: an error of sending is the result at once.
  CUresult AwaitSent(CUresult sent, Reader* body, uint32_t* bulk_bytes = nullptr) {
    return sent != CUDA_SUCCESS ? sent : Await(body, bulk_bytes);
  }
  // States how many bytes the request moves: replies to requests of about the same size take about the same
  // time, which the wait uses.
  void NoteSize(uint64_t bytes) { size_class_ = static_cast<uint32_t>(std::bit_width(bytes)); }
  // Whether Await would return at once.
  bool ReplyReady() { return session_->transport().ReplyReady(channel_); }

 private:
  ThreadState& thread_;
  Session* session_ = nullptr;
  uint32_t channel_ = 0;
  uint32_t unanswered_ = 0;  // requests that were sent and have no reply yet
  Op sent_ = {};             // of the newest request
  uint32_t size_class_ = 0;
  bool output_pending_ = false;  // there is text to fetch when the last request is answered
  std::byte* record_ = nullptr;
  WireHandle context_ = 0;
  CUresult error_ = CUDA_SUCCESS;
  MessageInFlight in_flight_;
  bool works_ = false;                // a request was sent that may leave work behind
  std::vector<std::byte> kept_body_;  // the reply's, while printed text is fetched through the same channel
  std::unique_lock<Mutex<Lock::kSharedChannel>> shared_lock_;
};

// One request and its reply, each of which fits a record of the channel or travels in a staging buffer. The
// caller writes the body by writer(), calls Finish, which waits, and reads the reply by reader().
class PendingCall {
 public:
  // The caller keeps `submission` for Finish, and may complete it until then.
  explicit PendingCall(Op op, const Submission& submission = kNothingNamed)
      : op_(op), submission_(submission), writer_(lease_.Begin()) {}
  // Expects a reply of up to `reply_bytes` (kBulkBytes at most), which may be more than a record holds.
  PendingCall(Op op, size_t reply_bytes, const Submission& submission = kNothingNamed);
  PendingCall(Op op, Submission&& submission) = delete;
  PendingCall(Op op, size_t reply_bytes, Submission&& submission) = delete;
  ~PendingCall();
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  Writer& writer() { return writer_; }
  Reader& reader() { return reader_; }
  void NoteSize(uint64_t bytes) { lease_.NoteSize(bytes); }
  // Begins the body anew, with room for kBulkBytes.
  void Enlarge();
  // Sends nothing if the body could not be written; the result is then the writer's error.
  CUresult Finish();

 private:
  ChannelLease lease_;
  Op op_;
  const Submission& submission_;
  Writer writer_;
  Reader reader_;
  int bulk_ = -1;
  bool large_request_ = false;
  size_t reply_bytes_ = 0;  // 0: the reply fits a record
};

// Asks the host with a body of one value, and takes the value that it answers if there is one.
template <class Body>
CUresult AskHost(Op op, const Body& body) {
  PendingCall call(op);
  call.writer().Put(body);
  return call.Finish();
}
template <class Body, class Answer>
CUresult AskHost(Op op, const Body& body, Answer* answer) {
  PendingCall call(op);
  call.writer().Put(body);
  if (const CUresult result = call.Finish()) return result;
  const auto answered = call.reader().Get<Answer>();
  if (!call.reader().ok()) return CUDA_ERROR_UNKNOWN;
  *answer = answered;
  return CUDA_SUCCESS;
}

}  // namespace causeway::guest
