// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/session/session.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <unistd.h>

#include <cxxabi.h>

#include <algorithm>
#include <cstring>

#include "guest_lib/connection/connect.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/process/log.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/session/context.h"
#include "ivshmem_ring/messages/callback_messages.h"
#include "ivshmem_ring/messages/managed_messages.h"
#include "ivshmem_ring/transport/flight_recorder.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway::guest {
namespace {

constexpr size_t kHeader = sizeof(RecordHeader);
constexpr uint32_t kSharedChannel = kChannelCount - 1;
static_assert(kCallbackChannel == kSharedChannel - 1 &&
              kManagedChannel == kSharedChannel - 2);  // no thread's own
// What a lost session answers, for good: an error outside of CUDA after which the process must be restarted.
constexpr CUresult kLostError = CUDA_ERROR_EXTERNAL_DEVICE;

enum class State { kNew, kOpen, kForked, kEnded };
std::atomic<State> state{State::kNew};
Mutex<Lock::kOpen> open_mutex;

bool IsSticky(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_EXTERNAL_DEVICE:
      return true;
    default:
      return false;
  }
}

// The child of an initialised process has no session, as natively; the parent's must survive its exit.
void InForkedChild() {
  Session* session = the_session.exchange(nullptr);
  if (session == nullptr) return;
  state.store(State::kForked);
  session->connection().Abandon();
}

// Posted when the process ends, before AtUnload runs, which runs as well when the program closes this library and is not told which of
// the two it is. Only a function that stays, and that is registered for no library, is called at the end alone: so sem_post itself is
// registered, and the semaphore is never freed. Its address stands for the library as well, since no library has that one: with a null
// there, TSan calls the function without its argument.
sem_t* exits = nullptr;

void NoteExit() {
  exits = new sem_t;
  sem_init(exits, 0, 0);
  const auto post = reinterpret_cast<void (*)()>(&sem_post);  // exit() ignores the result of sem_post
  abi::__cxa_atexit(reinterpret_cast<void (*)(void*)>(post), exits, exits);
}

__attribute__((destructor)) void AtUnload() {
  Session* session = the_session.exchange(nullptr);
  if (session == nullptr) return;
  state.store(State::kEnded);
  session->connection().End(sem_trywait(exits) == 0 ? Connection::Ending::kExit
                                                    : Connection::Ending::kUnloaded);
}

// Corrects what holds on the host but not here, so that programs which ask are told the truth.
void DescribeWhatHolds(DeviceDescription* device) {
  // No device reaches this process's ordinary memory, whatever page tables it shares with the host's
  // processes. Memory that cuMemCreate would place on the host is refused (Admit in
  // ivshmem_ring/protocol/flat.h).
  for (const CUdevice_attribute attribute :
       {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
        CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
        CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED}) {
    device->attribute[attribute] = 0;
  }
}

}  // namespace

uint64_t RepliesAwaited() {
  return ThisThread().awaited;
}

CUresult InitialisedOrError() {
  if (this_thread != nullptr && this_thread->in_function) return CUDA_ERROR_NOT_PERMITTED;
  return SessionOrError();
}

CUresult SessionOrError() {
  if (Session::Get() != nullptr) return CUDA_SUCCESS;
  return state.load() == State::kEnded ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult FindStream(CUstream stream, Object** object) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (stream == CU_STREAM_PER_THREAD) stream = PerThreadStream();
  *object = nullptr;
  if (stream == nullptr || stream == CU_STREAM_LEGACY)
    return CurrentContextObject() != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  *object = Find(stream);
  return *object != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult ContextOfStream(CUstream stream, CUcontext* context) {
  Object* object = nullptr;
  if (const CUresult result = FindStream(stream, &object)) return result;
  *context = reinterpret_cast<CUcontext>(object != nullptr ? object->context : CurrentContextObject());
  return CUDA_SUCCESS;
}

CUresult StreamId(CUstream stream, uint64_t* id) {
  Object* object = nullptr;
  if (const CUresult result = FindStream(stream, &object)) return result;
  // The legacy stream of a context takes the context's id in a range of its own.
  *id = object != nullptr ? object->id : CurrentContextObject()->id | uint64_t{1} << 62;
  return CUDA_SUCCESS;
}

CUresult Session::Open() {
  // The thread that opens the session uses it before it is open; others wait for that thread.
  if (state.load() == State::kOpen && Get() != nullptr) return CUDA_SUCCESS;
  if (state.load() != State::kNew) return InitialisedOrError();
  const std::lock_guard lock(open_mutex);
  if (Get() != nullptr) return CUDA_SUCCESS;
  static Session& session =
      *new Session;  // lives as long as the process: threads may call until the very end
  if (const CUresult result = session.Start()) return result;
  static const int registered = pthread_atfork(nullptr, nullptr, InForkedChild);
  (void)registered;
  NoteExit();
  the_session.store(&session, std::memory_order_release);
  state.store(State::kOpen);
  return CUDA_SUCCESS;
}

CUresult Session::Start() {
  std::string error;
  connection_ = Connect(SessionKind::kCuda, &error);
  if (connection_ == nullptr) {
    Complain(error);
    return CUDA_ERROR_NO_DEVICE;
  }
  for (uint32_t i = 0; i < kBulkBuffers; ++i) {
    if (!transport().shares_memory()) bulks_[i] = {connection_->PrivateBulk(i), i};
  }
  made_session.store(this, std::memory_order_release);
  the_session.store(this, std::memory_order_release);  // for the messages below, this thread only
  CUresult result = hooks.prepare_memory(*connection_, bulks_, &memory_);
  if (result == CUDA_SUCCESS) result = ReadDescription();
  the_session.store(nullptr, std::memory_order_release);
  if (result != CUDA_SUCCESS) {
    const std::string why = transport().LossReason();
    Complain("the session could not be opened (error " + std::to_string(result) + ")" +
             (why.empty() ? "" : ": " + why));
    connection_.reset();
    return result == kLostError ? CUDA_ERROR_NO_DEVICE : result;
  }
  MakePrimaryContexts(static_cast<int>(devices_.size()));
  for (size_t i = 0; i < devices_.size(); ++i) {
    ContextOf(PrimaryContext(static_cast<CUdevice>(i))).has_words =
        transport().shares_memory() &&
        devices_[i].attribute[CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS] != 0;
  }
  return CUDA_SUCCESS;
}

CUresult Session::ReadDescription() {
  ChannelLease lease;
  const uint32_t index = AcquireBulk();
  Writer body = lease.Begin();
  const CUresult sent = lease.Send(Op::kOpen, body, kBulkToGuest, bulk(index).offset, kBulkBytes);
  Reader none;
  uint32_t bytes = 0;
  CUresult result = lease.AwaitSent(sent, &none, &bytes);
  if (result == CUDA_SUCCESS) {
    Reader reply({bulk(index).bytes, std::min<size_t>(bytes, kBulkBytes)});
    host_ = reply.Get<OpenReply>();
    for (uint32_t i = 0; i < host_.device_count && i < kMaxDevices; ++i) {
      devices_.push_back(reply.Get<DeviceDescription>());
      DescribeWhatHolds(&devices_.back());
    }
    result = reply.ok() ? static_cast<CUresult>(host_.init_result) : CUDA_ERROR_UNKNOWN;
  }
  ReleaseBulk(index);
  return result;
}

int DeviceCount() {
  return static_cast<int>(Session::Made().devices().size());
}

CUresult Session::Lost() {
  // A session that this process has ended itself, under a thread that is still inside a call, is no loss to speak of.
  if (sticky_.exchange(kLostError) != kLostError && state.load() != State::kEnded) {
    Complain("the session is lost (" + transport().LossReason() +
             "): this process gets CUDA_ERROR_EXTERNAL_DEVICE from now on");
  }
  return kLostError;
}

CUresult Session::Note(CUresult result) {
  if (result != CUDA_SUCCESS && IsSticky(result)) {
    uint32_t none = 0;
    sticky_.compare_exchange_strong(none, result);
  }
  return result;
}

CUresult Session::Check(const ThreadState& thread, WireHandle* context) {
  if (thread.in_callback) return CUDA_ERROR_NOT_PERMITTED;
  if (!thread.past_errors) {
    const uint64_t error = connection_->transport->AsyncError();
    if (error != seen_async_error_.load(std::memory_order_relaxed)) {
      seen_async_error_.store(error, std::memory_order_relaxed);
      return Note(static_cast<CUresult>(static_cast<uint32_t>(error)));
    }
    if (const auto known = sticky_.load(std::memory_order_relaxed)) return static_cast<CUresult>(known);
  }
  if (context == nullptr || thread.contexts.empty()) return CUDA_SUCCESS;
  const Object* current = thread.contexts.back();
  if (!ContextOf(current).active.load(std::memory_order_relaxed)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *context = WireOf(current);
  return CUDA_SUCCESS;
}

CUresult CheckSend() {
  Session* session = Session::Get();
  WireHandle context = 0;
  return session != nullptr ? session->Check(ThisThread(), &context) : InitialisedOrError();
}

CUresult CheckUnsafeCall() {
  if (!AnyCapture()) return CUDA_SUCCESS;
  PendingCall call(Op::kUnsafeCall);
  return call.Finish();
}

CUresult NeedContext() {
  const ThreadState& thread = ThisThread();
  if (!IsUsable(thread)) return InitialisedOrError();
  return thread.contexts.empty() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

bool Session::TryAcquireBulk(uint32_t* index, uint32_t waiters) {
  if (bulk_waiters_.load(std::memory_order_relaxed) > waiters) return false;
  if (bulks_taken_.load(std::memory_order_relaxed) != 0) hooks.reclaim_buffers(*this);
  uint32_t taken = bulks_taken_.load(std::memory_order_relaxed);
  for (*index = 0; *index < kBulkBuffers; ++*index) {
    if ((taken >> *index & 1) == 0 && bulks_taken_.compare_exchange_strong(taken, taken | 1u << *index))
      return true;
  }
  return false;
}

uint32_t Session::AcquireBulk() {
  constexpr uint32_t kYields = 1000;
  uint32_t index = 0;
  bulk_waiters_.fetch_add(1, std::memory_order_relaxed);
  // Their holders wait for the host only, whose death ends those waits.
  for (uint32_t tries = 0; !TryAcquireBulk(&index, UINT32_MAX); ++tries)
    tries < kYields ? sched_yield() : usleep(50);
  bulk_waiters_.fetch_sub(1, std::memory_order_relaxed);
  return index;
}

void Session::ReleaseBulk(uint32_t index) {
  bulks_taken_.fetch_and(~(1u << index));
}

void Session::FetchOutput(uint32_t channel) {
  for (;;) {
    std::byte* record = transport().ReserveRequest(channel, kMaxChannelRecordBytes);
    if (record == nullptr) return;
    RecordHeader header{};
    header.op = static_cast<uint16_t>(Op::kFetchOutput);
    PutHeader(record, header);
    transport().PublishRequest(channel, kHeader);
    const auto reply = transport().AwaitReply(channel);
    if (reply.size() <= kHeader) return;
    Reader body(reply.subspan(kHeader));
    while (body.left() > 0) {
      const auto stream = body.Get<uint32_t>();
      const auto bytes = body.Get<uint32_t>();
      const std::byte* text = body.Take(bytes);
      if (text == nullptr) return;
      if (stream >= kLogStream) {
        hooks.deliver_log(stream - kLogStream, reinterpret_cast<const char*>(text), bytes);
      } else {
        fwrite(text, 1, bytes, stream == 2 ? stderr : stdout);
      }
    }
  }
}

PendingPost::PendingPost(Op op, const Submission& submission, size_t body_bytes)
    : thread_(ThisThread()), op_(op), submission_(submission) {
  in_flight_.Begin(op, submission.is_apart);
  session_ = Session::Get();
  CUresult error = session_ != nullptr ? session_->Check(thread_, &context_) : InitialisedOrError();
  waits_ = AnyCapture() && op != Op::kOpenChannel && thread_.leases == 0;
  if (waits_ && body_bytes > kSmallBytes) large_.resize(body_bytes);
  if (error == CUDA_SUCCESS && body_bytes > kSmallBytes && !waits_) error = Reserve(body_bytes);
  if (error != CUDA_SUCCESS) {
    writer_.Fail(error);
  } else if (!large_.empty()) {
    writer_ = Writer(large_);
  } else if (record_ != nullptr) {
    writer_ = Writer({record_ + kHeader, body_bytes});
  } else {
    writer_ = Writer({small_, kSmallBytes});
  }
}

CUresult PendingPost::Reserve(size_t body_bytes) {
  for (;;) {
    lock_ = std::unique_lock(session_->main_mutex_, std::defer_lock);
    held_.Take();
    LockBriefly(lock_);
    record_ = session_->connection_->transport->ReserveMain(kHeader + body_bytes, lock_);
    if (record_ == nullptr) return session_->Lost();
    // Nothing is held from here on until the record is published: that takes the lock.
    if (!HoldsBlocks() || op_ == Op::cuMemFree_v2 || Session::Get() == nullptr) return CUDA_SUCCESS;
    lock_.unlock();
    held_.Drop();
    FreeBlocks();
  }
}

CUresult PendingPost::Finish(uint64_t* sequence, uint16_t flags) {
  if (!writer_.ok()) return writer_.error();
  if (waits_ && sequence == nullptr) return FinishAndWait();
  if (record_ == nullptr) {
    if (const CUresult result = Reserve(writer_.size())) return result;
    std::memcpy(record_ + kHeader, large_.empty() ? small_ : large_.data(), writer_.size());
  }
  PostedHeader header{};
  header.op = static_cast<uint16_t>(op_);
  header.flags = static_cast<uint16_t>(flags | thread_.capture_mode);
  header.context = context_;
  header.thread = FlightThread();
  const Submission& submitted = submission_;
  if (submitted.stays_in_stream) {
    if (submitted.stream != nullptr && !submitted.is_copy) header.stream = WireOf(submitted.stream);
    if (submitted.event != nullptr) header.event = WireOf(submitted.event);
  }
  PutHeader(record_, header);
  ClientTransport& transport = *session_->connection_->transport;
  const uint64_t next = transport.main_sequence();
  if (sequence != nullptr) *sequence = next;
  submissions.NotePost(in_flight_, op_, submitted, context_, next);
  transport.PublishMain(kHeader + writer_.size());
  lock_.unlock();
  held_.Drop();
  in_flight_.Sent();
  return CUDA_SUCCESS;
}

// On the thread's channel, whose thread on the host is the one that captures; what a channel's record cannot
// hold is posted and then asked after.
CUresult PendingPost::FinishAndWait() {
  const size_t bytes = writer_.size();
  ChannelLease lease;
  Reader none;
  uint64_t sequence = 0;
  Op op = op_;
  if (bytes > kMaxChannelRecordBytes - kHeader) {
    if (const CUresult result = Finish(&sequence, kResultWanted)) return result;
    op = Op::kPostedResult;
  }
  Writer w = lease.Begin();
  if (op == Op::kPostedResult) {
    w.Put(sequence);
  } else {
    w.PutBytes(large_.empty() ? small_ : large_.data(), bytes);
  }
  return lease.AwaitSent(lease.Send(op, w, 0, 0, 0, submission_), &none);
}

ChannelLease::ChannelLease() : thread_(ThisThread()) {
  FreeHeld();
  FreeBlocks();
  session_ = Session::Get();
  error_ = session_ != nullptr ? session_->Check(thread_, &context_) : InitialisedOrError();
  ++thread_.leases;
  if (error_ != CUDA_SUCCESS) return;
  if (thread_.channel < 0) {
    uint64_t taken = session_->channels_taken_.load();
    while (thread_.channel < 0 && ~taken << 3 != 0) {
      const int free = __builtin_ctzll(~taken);
      if (free >= static_cast<int>(kManagedChannel)) break;
      if (session_->channels_taken_.compare_exchange_weak(taken, taken | uint64_t{1} << free))
        thread_.channel = free;
    }
  }
  channel_ = thread_.channel >= 0 ? static_cast<uint32_t>(thread_.channel) : kSharedChannel;
  if (channel_ == kSharedChannel) shared_lock_ = std::unique_lock(session_->shared_channel_mutex_);
  const uint64_t bit = uint64_t{1} << channel_;
  const bool opened = (session_->channels_opened_.load(std::memory_order_relaxed) & bit) != 0;
  if (!opened && (session_->channels_opened_.fetch_or(bit) & bit) == 0) {
    PendingPost post(Op::kOpenChannel);
    post.writer().Put(OpenChannelBody{channel_, 0});
    error_ = post.Finish();
  }
}

ChannelLease::~ChannelLease() {
  if (works_) submissions.NoteCallEnds();
  if (shared_lock_.owns_lock()) shared_lock_.unlock();
  --thread_.leases;
  in_flight_.Finish();
}

Writer ChannelLease::Begin(size_t body_bytes) {
  Writer writer{{}};
  if (error_ == CUDA_SUCCESS) {
    record_ = session_->transport().ReserveRequest(channel_, kHeader + body_bytes);
    if (record_ == nullptr) error_ = session_->Lost();
  }
  if (error_ != CUDA_SUCCESS) {
    writer.Fail(error_);
    return writer;
  }
  return Writer({record_ + kHeader, body_bytes});
}

CUresult ChannelLease::Send(Op op, const Writer& body, uint16_t flags, uint64_t bulk_offset,
                            uint32_t bulk_bytes, const Submission& submission) {
  if (!body.ok()) return body.error();
  in_flight_.Begin(op);
  if (submissions.NoteCall(in_flight_, op, submission, context_)) {
    works_ = true;
    FreeBlocks();  // of a thread that came between
  }
  RecordHeader header{};
  header.op = static_cast<uint16_t>(op);
  header.flags = static_cast<uint16_t>(flags | thread_.capture_mode | (MayKernelsPrint() ? kMayPrint : 0) |
                                       (thread_.blocking_waits ? kBlockingWait : 0));
  header.context = context_;
  header.main_sequence = session_->transport().main_sequence();
  header.bulk_offset = bulk_offset;
  header.bulk_bytes = bulk_bytes;
  PutHeader(record_, header);
  session_->transport().PublishRequest(channel_, kHeader + body.size());
  ++unanswered_;
  sent_ = op;
  return CUDA_SUCCESS;
}

CUresult ChannelLease::Await(Reader* body, uint32_t* bulk_bytes) {
  ++thread_.awaited;
  // Of requests sent ahead of their replies it is not known when they are begun.
  const bool alone = --unanswered_ == 0;
  const ReplyWait wait{.kind = alone ? static_cast<uint32_t>(sent_) << 7 | size_class_ : 0,
                       .blocking = thread_.blocking_waits};
  const auto reply = session_->transport().AwaitReply(channel_, wait);
  if (reply.size() < kHeader) return error_ = session_->Lost();
  const auto header = ReadHeader<RecordHeader>(reply);
  if (bulk_bytes != nullptr) *bulk_bytes = header.bulk_bytes;
  *body = Reader(reply.subspan(kHeader));
  const auto result = static_cast<CUresult>(header.result);
  // Fetched over the same channel, so only when no other reply is on its way.
  output_pending_ |= (header.flags & kOutputPending) != 0;
  if (output_pending_ && unanswered_ == 0) {
    output_pending_ = false;
    kept_body_.assign(reply.begin() + kHeader, reply.end());
    *body = Reader(kept_body_);
    session_->FetchOutput(channel_);
  }
  // The host begins what others have sent when it likes.
  if (unanswered_ == 0) in_flight_.Sent();
  in_flight_.Answered(result == CUDA_SUCCESS);
  return session_->Note(result);
}

PendingCall::~PendingCall() {
  if (bulk_ >= 0) lease_.session().ReleaseBulk(static_cast<uint32_t>(bulk_));
}

PendingCall::PendingCall(Op op, size_t reply_bytes, const Submission& submission)
    : PendingCall(op, submission) {
  if (reply_bytes <= kMaxChannelRecordBytes - kHeader || lease_.error() != CUDA_SUCCESS) return;
  bulk_ = static_cast<int>(lease_.session().AcquireBulk());
  reply_bytes_ = std::min(reply_bytes, kBulkBytes);
}

void PendingCall::Enlarge() {
  if (lease_.error() != CUDA_SUCCESS) return;
  if (bulk_ < 0) bulk_ = static_cast<int>(lease_.session().AcquireBulk());
  large_request_ = true;
  writer_ = Writer({lease_.session().bulk(static_cast<uint32_t>(bulk_)).bytes, kBulkBytes});
}

CUresult PendingCall::Finish() {
  if (!writer_.ok()) return writer_.error();
  if (bulk_ < 0) return lease_.AwaitSent(lease_.Send(op_, writer_, 0, 0, 0, submission_), &reader_);
  const Bulk bulk = lease_.session().bulk(static_cast<uint32_t>(bulk_));
  Writer record = writer_;
  size_t lent = reply_bytes_;
  uint16_t flags = reply_bytes_ != 0 ? kLargeReply | kBulkToGuest : 0;
  if (large_request_) {
    record = lease_.Begin();
    record.Put(static_cast<uint32_t>(writer_.size()));
    flags |= kLargeRequest | kBulkToHost;
    lent = std::max(lent, writer_.size());
  }
  CUresult result = lease_.Send(op_, record, flags, bulk.offset, static_cast<uint32_t>(lent), submission_);
  if (result != CUDA_SUCCESS) return result;
  uint32_t bytes = 0;
  result = lease_.Await(&reader_, &bytes);
  if (reply_bytes_ != 0) reader_ = Reader({bulk.bytes, std::min<size_t>(bytes, lent)});
  return result;
}

}  // namespace causeway::guest
