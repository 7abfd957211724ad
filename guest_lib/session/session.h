// SPDX-License-Identifier: Apache-2.0
// This process's session with the host: made by cuInit, gone with the process. Everything that sends goes
// through the classes below; generic rows use them through Remote (guest_lib/stream/remote.h).
//
// Lock order: context lock (context_calls.cc) > region memory > main lock. A channel belongs to one thread at
// a time.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <atomic>
#include <bit>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "guest_lib/connection/connection.h"
#include "guest_lib/session/handles.h"
#include "guest_lib/session/progress.h"
#include "guest_lib/session/work.h"
#include "ivshmem_ring/messages/session_messages.h"
#include "ivshmem_ring/protocol/call.h"
#include "ivshmem_ring/transport/transport.h"

namespace causeway::guest {

class RegionMemory;
class Session;
struct ThreadState;

// What higher parts of the library have to do at moments that only the session sees. Each is set once, while
// the library is loaded, by the file that does it; so it is there before any session, and reading it needs no
// order.
struct Hooks {
  // region_memory.cc: the connection is there, and only this thread knows of it, which may send messages.
  // Agrees with the worker on addresses, makes the memory that both share, and where there is some, places
  // the bulk buffers in it. An error has been explained.
  CUresult (*prepare_memory)(Connection& connection, Bulk* bulks, RegionMemory** memory) = nullptr;
  void (*free_held_memory)() = nullptr;  // freed_memory.cc
  void (*free_held_blocks)() = nullptr;  // freed_blocks.cc
  void (*reclaim_buffers)(Session&) =
      nullptr;  // posted_copy.cc: before a bulk buffer is sought while some are taken
  // logs.cc: a line of the driver's log, CUlogLevel `level`, has come.
  void (*deliver_log)(uint32_t level, const char* text, size_t bytes) = nullptr;
};
inline constinit Hooks hooks;

// Tells the host of all stream-ordered memory that the program has freed and that is held back
// (freed_memory.h). Before calls that wait, and where something that it hangs on ends.
inline std::atomic<size_t> held_frees{0};
inline bool AnyHeld() {
  return held_frees.load(std::memory_order_acquire) != 0;
}
inline void FreeHeld() {
  if (AnyHeld()) hooks.free_held_memory();
}
// The same of memory of cuMemAlloc (freed_blocks.h). Whatever sends something looks first: with the main lock
// before a record is posted, and after a call was counted (Activity::NoteCall) before it is sent.
inline std::atomic<uint32_t> held_blocks{0};
inline bool HoldsBlocks() {
  return held_blocks.load() != 0;  // partner: HoldFreedBlock
}
inline void FreeBlocks() {
  if (HoldsBlocks()) hooks.free_held_blocks();
}

// From now on kernels may print. Their text comes out when the program synchronises, so that no call is left
// out any more, and the host looks for it (kMayPrint).
inline std::atomic<bool> may_print{false};
inline void NotePrintingKernels() {
  may_print.store(true, std::memory_order_release);
}
inline bool MayKernelsPrint() {
  return may_print.load(std::memory_order_acquire);
}

class Session {
 public:
  // The process's session, or null before cuInit, after a failed one, in a forked child, and once the process
  // ends: any other thread may bring that about.
  static Session* Get();
  // The same for whose caller has found it open: it stays readable to the very end, and what is sent then
  // fails.
  static Session& Made();
  // cuInit: connects and opens once; later calls return the same result. Never throws, never hangs.
  static CUresult Open();

  // Before anything is sent: 0, the sticky error, or an error of an earlier posted call (told once).
  CUresult Check();
  CUresult Check(const ThreadState& thread);  // the calling one
  // Notes errors after which nothing works any more. Returns its argument.
  CUresult Note(CUresult result);
  CUresult sticky() const { return static_cast<CUresult>(sticky_.load(std::memory_order_relaxed)); }

  ClientTransport& transport() { return *connection_->transport; }
  Connection& connection() { return *connection_; }
  RegionMemory& memory() { return *memory_; }
  const OpenReply& host() const { return host_; }
  std::span<const DeviceDescription> devices() const { return devices_; }
  std::mutex& main_mutex() { return main_mutex_; }
  Activity& activity() { return activity_; }

  // Bulk buffers of the session. AcquireBulk waits while all are in use by other threads, so its caller holds
  // none: else two could wait for each other. TryAcquireBulk leaves what is free to those who wait.
  uint32_t AcquireBulk();
  bool TryAcquireBulk(uint32_t* index);
  void ReleaseBulk(uint32_t index);
  bool IsBulkAwaited() const { return bulk_waiters_.load(std::memory_order_relaxed) != 0; }
  Bulk bulk(uint32_t index) const { return bulks_[index]; }

  // A thread that ends gives its channel back.
  void ReleaseChannel(uint32_t channel) { channels_taken_.fetch_and(~(uint64_t{1} << channel)); }

  // Text that kernels printed: fetched on the given channel and written to this process's stdout and stderr.
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
  alignas(64) std::mutex main_mutex_;                    // who posts changes its line,
  alignas(64) std::atomic<uint64_t> channels_taken_{0};  // bit per channel. Everybody reads this one
  std::atomic<uint64_t> channels_opened_{1};             // the host opens channel 0 by itself
  std::mutex shared_channel_mutex_;  // the last channel serves all threads beyond the others
  bool TakeBulk(uint32_t* index);
  std::atomic<uint32_t> bulks_taken_{0};
  std::atomic<uint32_t> bulk_waiters_{0};
  Bulk bulks_[kBulkBuffers];
  std::atomic<uint32_t> sticky_{0};
  std::atomic<uint64_t> seen_async_error_{0};
  Activity activity_;
};

// The error that anything sent now would meet.
CUresult CheckSend();
// For calls that captures forbid and that are answered here: what the driver would say.
CUresult CheckUnsafeCall();
// CUDA_SUCCESS when the process is initialised and the calling thread has a context.
CUresult NeedContext();

// One posted message; while any stream of the process captures, one that is waited for, since captures make
// errors of it that the program must see at the call. A body of up to kSmallBytes is gathered aside and put
// into the ring by Finish, so that filling it may send messages of its own (a per-thread stream is made at
// first use). A larger one is written in place, with the main lock held from construction on: whoever fills
// it must not send.
class PendingPost {
 public:
  static constexpr size_t kSmallBytes = 1024;
  // `body_bytes` bounds the body.
  explicit PendingPost(Op op, const Works& works = {}, size_t body_bytes = kSmallBytes);
  Writer& writer() { return writer_; }
  CUresult Finish();
  // Whether Finish waits for it.
  bool waits() const { return waits_; }
  // Posted even while a stream captures; its number in the main ring.
  CUresult FinishNumbered(uint64_t* sequence, uint16_t flags = 0) { return Publish(flags, sequence); }

 private:
  CUresult Reserve(size_t body_bytes);
  CUresult Publish(uint16_t flags, uint64_t* sequence);
  CUresult FinishAndWait();

  ThreadState& thread_;  // looking it up costs a call each time
  Session* session_ = nullptr;
  bool waits_ = false;
  MessageMark mark_;
  std::vector<std::byte> large_;  // a large body that is waited for
  std::unique_lock<std::mutex> lock_;
  Op op_;
  Works works_;
  std::byte* record_ = nullptr;
  WireHandle context_ = 0;
  Writer writer_{{}};
  alignas(8) std::byte small_[kSmallBytes];
};

// The calling thread's channel, for as long as the object lives.
class ChannelLease {
 public:
  ChannelLease();
  ~ChannelLease();
  ChannelLease(const ChannelLease&) = delete;
  ChannelLease& operator=(const ChannelLease&) = delete;

  // 0, or why nothing can be sent.
  CUresult error() const { return error_; }
  Session& session() { return *session_; }

  // Requests may be sent ahead of their replies, as many as there are bulk buffers; replies come in order.
  // With several on their way `body_bytes` must be small: their records and replies have to fit the rings
  // together.
  Writer Begin(size_t body_bytes = kMaxChannelRecordBytes - sizeof(RecordHeader));
  CUresult Send(Op op, const Writer& body, uint16_t flags = 0, uint64_t bulk_offset = 0,
                uint32_t bulk_bytes = 0);
  // The next reply's result and body, valid until the next Await.
  CUresult Await(Reader* body, uint32_t* bulk_bytes = nullptr);
  // How much the request moves: replies to such requests take about the same time.
  void NoteSize(uint64_t bytes) { size_class_ = static_cast<uint32_t>(std::bit_width(bytes)); }
  // Whether Await would return at once.
  bool ReplyReady() { return session_->transport().ReplyReady(channel_); }

 private:
  ThreadState& thread_;
  Session* session_ = nullptr;
  uint32_t channel_ = 0;
  uint32_t unanswered_ = 0;  // requests
  Op sent_ = {};             // the newest of them
  uint32_t size_class_ = 0;
  bool output_pending_ = false;  // text to fetch when the last of them is answered
  std::byte* record_ = nullptr;
  WireHandle context_ = 0;
  CUresult error_ = CUDA_SUCCESS;
  MessageMark mark_;
  bool works_ = false;                // something was sent that may leave work behind
  std::vector<std::byte> kept_body_;  // of a reply, while printed text is fetched through the same channel
  std::unique_lock<std::mutex> shared_lock_;
};

// One request and its reply. Each fits a channel record, or travels in a bulk buffer.
class PendingCall {
 public:
  explicit PendingCall(Op op) : op_(op), writer_(lease_.Begin()) {}
  // Expects a reply of up to `reply_bytes` (kBulkBytes at most), which may be more than a record holds.
  PendingCall(Op op, size_t reply_bytes);
  ~PendingCall();
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  Writer& writer() { return writer_; }
  Reader& reader() { return reader_; }
  void NoteSize(uint64_t bytes) { lease_.NoteSize(bytes); }
  // Starts the body again, with room for kBulkBytes.
  void Enlarge();
  CUresult Finish();

 private:
  ChannelLease lease_;
  Op op_;
  Writer writer_;
  Reader reader_;
  int bulk_ = -1;
  bool large_request_ = false;
  size_t reply_bytes_ = 0;  // 0: the reply fits a record
};

}  // namespace causeway::guest
