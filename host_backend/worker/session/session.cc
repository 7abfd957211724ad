// SPDX-License-Identifier: Apache-2.0
// Threads of a session, and what happens around every message.
#include "host_backend/worker/session/session.h"

#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "host_backend/common/result.h"
#include "host_backend/worker/driver/user_objects.h"
#include "ivshmem_ring/protocol/op_name.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway::host {

Session::Session(std::unique_ptr<ServerTransport> transport, RegionView region)
    : transport_(std::move(transport)),
      region_(region),
      lanes_(LaneCount(), [this](std::span<const std::byte> record) { ExecuteInLane(record); }) {
  SetCurrentCallbacks(callbacks_);
  handles_.try_exclusive = [this](WireHandle wire) { return exclusive_.TryTake(wire); };
  handles_.note_graph_ends = [](void* graph) { TheUserObjects().GraphEnds(static_cast<CUgraph>(graph)); };
  handles_.end_exclusive = [this](WireHandle wire) { exclusive_.Return({&wire, 1}); };
}

Session::~Session() {
  Stop();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  if (first_registration_.joinable()) first_registration_.join();
  SetCurrentCallbacks(nullptr);
}

void Session::Stop() {
  stop_.store(true, std::memory_order_release);
  transport_->Stop();
  lanes_.Stop();
  exclusive_.Stop();
  ReleaseCallbackWords();
  callbacks_->Stop();  // last: what it releases meets a session that takes no more requests
}

std::string Session::Serve() {
  Dispatch();
  const std::lock_guard lock(reason_mutex_);
  return reason_;
}

void Session::Violation(const std::string& what) {
  violations.fetch_add(1);
  Fail("the guest broke the protocol: " + what);
}

void Session::Fail(const std::string& reason) {
  {
    const std::lock_guard lock(reason_mutex_);
    if (reason_.empty()) reason_ = reason;
  }
  Stop();
}

void Session::Dispatch() {
  constexpr uint32_t kMostUnsettled = 32;
  for (;;) {
    std::span<const std::byte> record;
    if (unsettled_ != 0) Settle(unsettled_ < kMostUnsettled);
    if (unsettled_ == 0) EndRequest();  // what copies are under way in must stay
    const ReceiveStatus status = transport_->ReceiveMain(&record);
    if (status == ReceiveStatus::kCorrupt) Breach(transport_->CorruptReason());
    if (status != ReceiveStatus::kRecord) return;
    RecordHeader header;
    std::memcpy(&header, record.data(), sizeof header);
    const bool more_copies = header.op == last_unsettled_.op && header.context == last_unsettled_.context;
    if (!more_copies) Settle();
    const Handed handed = Hand(header, record);
    if (handed == Handed::kStopped) return;
    if (handed == Handed::kYes) continue;
    Reader in(record.subspan(sizeof header));
    Writer nothing({});
    Request request{.header = header, .in = in, .out = nothing, .channel = kChannelCount, .bulk = {}};
    const CUresult result = Execute(request);
    if (result != CUDA_SUCCESS) NoteFailedPost(header, result);
    if (result == CUDA_SUCCESS && request.unsettled) {
      ++unsettled_;
      last_unsettled_ = header;
    } else {
      Settle();
      dispatched_.store(header.sequence + 1, std::memory_order_release);  // partner: WaitForMain
    }
    transport_->DoneMain();
    if (unsettled_ == 0) EndRequest();
  }
}

namespace {

// What may be executed beside other posted records: kinds that work on the one stream that they name, change
// nothing that a record without a stream or a call may ask for (those come after it, by Lanes::Drain and
// Lanes::Await), and whose handlers run on any thread.
bool MayLeaveDispatcher(const RecordHeader& header, size_t bytes) {
  if (header.main_sequence == 0 || header.main_sequence == kLegacyStreamWire ||
      (header.flags & kResultWanted) != 0 || bytes > Lanes::kMaxRecordBytes)
    return false;
  switch (static_cast<Op>(header.op)) {
    case Op::cuLaunchKernel:
    case Op::cuEventRecord:
    case Op::cuEventRecordWithFlags:
    case Op::cuStreamWaitEvent:
    case Op::cuStreamDestroy_v2:
    case Op::kCopyToDevice:
    case Op::kCopyToHost:
    case Op::kMark:
    case Op::cuMemcpyHtoDAsync_v2:
    case Op::cuMemcpyDtoHAsync_v2:
    case Op::cuMemcpyDtoDAsync_v2:
    case Op::cuMemsetD8Async:
    case Op::cuMemsetD16Async:
    case Op::cuMemsetD32Async:
      return true;
    default:
      return false;
  }
}

// Whether the guest must fetch printed text after this call (it is one of the driver's synchronisation
// points).
bool FlushesOutput(Op op) {
  switch (op) {
    case Op::kCopyToDevice:
    case Op::kCopyToHost:
    case Op::cuCtxSynchronize:
    case Op::cuCtxSynchronize_v2:
    case Op::cuStreamSynchronize:
    case Op::cuEventSynchronize:
    case Op::cuStreamQuery:
    case Op::cuEventQuery:
    case Op::cuMemcpyHtoD_v2:
    case Op::cuMemcpyDtoH_v2:
    case Op::cuMemFree_v2:
    case Op::cuModuleLoadDataEx:
    case Op::cuModuleUnload:
    case Op::cuLibraryLoadData:
    case Op::cuLibraryUnload:
    case Op::cuCtxDestroy_v2:
    case Op::cuDevicePrimaryCtxRelease_v2:
    case Op::cuDevicePrimaryCtxReset_v2:
      return true;
    default:
      return false;
  }
}

}  // namespace

Session::Handed Session::Hand(const RecordHeader& header, std::span<const std::byte> record) {
  if (!lanes_.Wanted(header.result, [this] { return transport_->MainReady(); })) return Handed::kNo;
  if (!MayLeaveDispatcher(header, record.size())) return lanes_.Drain() ? Handed::kNo : Handed::kStopped;
  Settle();  // its stream may be one that does not wait for the others
  const Lanes::Names names{header.result, header.main_sequence, header.bulk_offset};
  if (!lanes_.Hand(names, record)) return Handed::kStopped;
  dispatched_.store(header.sequence + 1, std::memory_order_release);  // partner: WaitForMain
  transport_->HandedMain();
  return Handed::kYes;
}

void Session::ExecuteInLane(std::span<const std::byte> record) {
  RecordHeader header;
  std::memcpy(&header, record.data(), sizeof header);
  Reader in(record.subspan(sizeof header));
  Writer nothing({});
  Request request{.header = header, .in = in, .out = nothing, .channel = kChannelCount, .bulk = {}};
  request.in_lane = true;
  const CUresult result = Execute(request);
  if (result != CUDA_SUCCESS) NoteFailedPost(header, result);
  transport_->ExecutedMain(header.sequence);
  EndRequest();
}

// Several copies one after the other are waited for together: before anything else that might rely on them.
void Session::Settle(bool or_more) {
  if (unsettled_ == 0) return;
  const auto more = [&] { return or_more && transport_->MainReady(); };
  CUresult result = CUDA_SUCCESS;
  if (more() || !AwaitPostedCopies(more, &result)) return;
  if (result != CUDA_SUCCESS) NoteFailedPost(last_unsettled_, result);
  unsettled_ = 0;
  dispatched_.store(last_unsettled_.sequence + 1, std::memory_order_release);  // partner: WaitForMain
}

void Session::NoteFailedPost(const RecordHeader& header, CUresult result) {
  if (KeepPostedResult(header, result)) return;
  LogFailedPost(header.op, result);
  transport_->PostAsyncError(result);
}

// The guest sees the error at a later call; which call it came from only the log can tell.
void Session::LogFailedPost(uint16_t op, CUresult result) {
  constexpr uint32_t kLines = 20;
  if (failed_posts_.fetch_add(1, std::memory_order_relaxed) >= kLines) return;
  const char* name = "";
  if (TheDriver().cuGetErrorName != nullptr) TheDriver().cuGetErrorName(result, &name);
  dprintf(Output::LogFd(), "causeway-worker[%d]: posted %s failed: %s (%d)\n", getpid(), OpName(op), name,
          result);
}

bool Session::KeepPostedResult(const RecordHeader& header, CUresult result) {
  constexpr size_t kMostKept = kChannelCount;  // each thread asks before it goes on
  if ((header.flags & kResultWanted) == 0) return false;
  const std::lock_guard lock(posted_results_mutex_);
  if (posted_results_.size() >= kMostKept) return false;
  posted_results_[header.sequence] = result;
  return true;
}

CUresult Session::TakePostedResult(uint64_t sequence) {
  const std::lock_guard lock(posted_results_mutex_);
  const auto found = posted_results_.find(sequence);
  if (found == posted_results_.end()) return CUDA_SUCCESS;
  const CUresult result = found->second;
  posted_results_.erase(found);
  return result;
}

// A channel request runs only after everything its process posted before it. A number that no guest can have
// reached would make this wait for ever.
bool Session::WaitForMain(const RecordHeader& request) {
  constexpr uint64_t kMostInFlight = uint64_t{1} << 20;  // far more than rings and sockets hold
  const uint64_t sequence = request.main_sequence;
  const uint64_t dispatched = dispatched_.load(std::memory_order_acquire);  // partner: Dispatch
  if (dispatched >= sequence) return lanes_.Await(sequence);
  if (sequence - dispatched > kMostInFlight) {
    Breach("a request waits for posted record " + std::to_string(sequence) + " of " +
           std::to_string(dispatched));
    return false;
  }
  WaitPolicy policy = OrderPolicy();
  if ((request.flags & kBlockingWait) != 0) policy.spin_us = policy.yield_us = 0;  // the dispatcher wakes up
  Waiter waiter(policy, nullptr, nullptr, false);
  do {
    if (stop_.load(std::memory_order_acquire)) return false;
    waiter.Step(0);
  } while (dispatched_.load(std::memory_order_acquire) < sequence);
  return lanes_.Await(sequence);
}

namespace {

// Bodies that are larger than a record lie in the bulk buffer that the request lends: a request's is copied
// out before anyone looks at it, a reply's is copied in when it is complete.
struct LargeBody {
  std::vector<std::byte> request;
  std::vector<std::byte> reply;

  // False: the record names more than it lends.
  bool Take(Reader& record, std::span<const std::byte> bulk) {
    const auto bytes = record.Get<uint32_t>();
    if (!record.ok() || bytes > bulk.size()) return false;
    request.assign(bulk.begin(), bulk.begin() + bytes);
    return true;
  }
  Writer Reply(size_t bytes) {
    if (reply.size() < bytes) reply.resize(bytes);
    return Writer({reply.data(), bytes});
  }
};

}  // namespace

bool Session::PutReply(uint32_t channel, const RecordHeader& reply, std::span<const std::byte> body) {
  std::byte* space = transport_->ReserveReply(channel, sizeof reply + body.size());
  if (space == nullptr) return false;
  PutHeader(space, reply);
  if (!body.empty()) std::memcpy(space + sizeof reply, body.data(), body.size());
  return true;
}

// Tells the guest to fetch what kernels have printed and the driver has logged. Looking costs system calls,
// which is more than a message. Kernels print only where the guest says that they may; a failed assertion is
// an error; what else the driver writes may come some milliseconds later.
void Session::NoteText(RecordHeader* reply) {
  const auto op = static_cast<Op>(reply->op);
  if (op == Op::kFetchOutput) return;
  const bool expected = (reply->flags & kMayPrint) != 0 || reply->result != CUDA_SUCCESS;
  if ((FlushesOutput(op) && (expected || output_.IsLookDue()) && output_.Pending()) || logs_.Pending())
    reply->flags |= kOutputPending;
}

bool Session::AnswerPieces(uint32_t channel, StagedPieces& pieces, bool all) {
  while (!pieces.empty()) {
    if (stop_.load(std::memory_order_acquire)) return false;
    if (!all && !pieces.full() && transport_->RequestReady(channel)) return true;
    RecordHeader reply;
    if (!pieces.Take(&reply)) continue;
    if ((reply.flags & kStagedLast) != 0) NoteText(&reply);
    if (!PutReply(channel, reply, {})) return false;
    transport_->PublishReply(channel, sizeof reply);
  }
  return true;
}

void Session::ServeChannel(uint32_t channel) {
  // Not gone with this thread: a copy into it may still be under way when the session ends.
  std::vector<std::byte>& body = reply_bodies_[channel];
  body.resize(kMaxChannelRecordBytes - sizeof(RecordHeader));
  LargeBody large;
  StagedPieces pieces;
  for (;;) {
    std::span<const std::byte> record;
    if (!pieces.empty() && !AnswerPieces(channel, pieces, handles_.UsesMany())) return;
    if (pieces.empty()) EndRequest();  // their events must stay
    const ReceiveStatus status = transport_->ReceiveRequest(channel, &record);
    if (status == ReceiveStatus::kCorrupt) Breach(transport_->CorruptReason());
    if (status != ReceiveStatus::kRecord) return;
    RecordHeader header;
    std::memcpy(&header, record.data(), sizeof header);
    if (!WaitForMain(header)) return;
    const bool staged = IsStaged(*this, header);
    if (!staged && !pieces.empty() && !AnswerPieces(channel, pieces, true)) return;
    Reader in(record.subspan(sizeof header));
    Writer out(body);
    std::span<std::byte> bulk = transport_->BulkOf(channel, header);
    const std::span<std::byte> lent = bulk;
    const bool large_reply = (header.flags & kLargeReply) != 0;
    if ((header.flags & kLargeRequest) != 0) {
      if (!large.Take(in, lent)) {
        Breach("a request names more bytes than it lends");
        return;
      }
      in = Reader(large.request);
      bulk = {};
    }
    if (large_reply) {
      out = large.Reply(lent.size());
      bulk = {};
    }
    Request request{.header = header, .in = in, .out = out, .channel = channel, .bulk = bulk};
    request.staged = staged;
    RecordHeader reply{};
    reply.op = header.op;
    reply.flags = header.flags & kMayPrint;  // for NoteText
    reply.bulk_offset = header.bulk_offset;
    reply.result = Execute(request);
    reply.bulk_bytes = request.bulk_written;
    if (staged) {
      reply.flags |= header.flags & kStagedLast;
      pieces.Add(reply, request.done);
      transport_->DoneRequest(channel);
      continue;
    }
    size_t bytes = out.size();
    if (large_reply) {
      if (bytes != 0) std::memcpy(lent.data(), large.reply.data(), bytes);
      reply.bulk_bytes = static_cast<uint32_t>(std::exchange(bytes, 0));
    }
    NoteText(&reply);
    if (!PutReply(channel, reply, {body.data(), bytes})) return;
    transport_->PublishReply(channel, sizeof reply + bytes);  // first: somebody waits for it
    transport_->DoneRequest(channel);
    EndRequest();
  }
}

void Session::OpenChannel(uint32_t channel) {
  if (channel >= kChannelCount) return;
  const std::lock_guard lock(threads_mutex_);
  if (opened_channels_ >> channel & 1) return;
  opened_channels_ |= uint64_t{1} << channel;
  try {
    threads_.emplace_back([this, channel] { ServeChannel(channel); });
  } catch (const std::system_error& error) {
    Fail(NoThreadText(error));
  }
}

// A session keeps as much of what it sent in pieces as its VM has given of its memory, 1 GiB at least:
// NVIDIA's largest library is 0.7 GiB.
bool Session::TakeBlobRoom(uint64_t bytes) {
  constexpr uint64_t kLeast = uint64_t{1} << 30;
  const uint64_t most = std::clamp(region_.bytes, kLeast, kMaxBlobBytes);
  uint64_t taken = blob_bytes_.load();
  do {
    if (taken > most || bytes > most - taken) return false;
  } while (!blob_bytes_.compare_exchange_weak(taken, taken + bytes));
  return true;
}

void Session::NoteUserObject(uint64_t callback, WireHandle object) {
  const std::lock_guard lock(user_objects_mutex_);
  user_objects_[callback] = object;
}

void Session::EndUserObject(uint64_t callback) {
  const std::lock_guard lock(user_objects_mutex_);
  const auto found = user_objects_.find(callback);
  if (found == user_objects_.end()) return;
  Unbind(found->second);
  user_objects_.erase(found);
}

std::shared_ptr<std::vector<std::byte>> Session::TakeBlob(const Request& request, uint64_t* bytes) {
  auto taken = std::make_shared<std::vector<std::byte>>();
  if (!request.bulk.empty()) {
    *bytes = request.bulk.size();
    taken->reserve(*bytes + kBlobEnd);
    taken->assign(request.bulk.begin(), request.bulk.end());
  } else {
    std::swap(*taken, blobs_[request.channel]);
    *bytes = taken->size();
    ReturnBlobRoom(*bytes);
  }
  taken->resize(*bytes + kBlobEnd);
  return taken;
}

void Session::Keep(WireHandle object, std::shared_ptr<void> what) {
  const std::lock_guard lock(kept_mutex_);
  kept_.emplace(object, std::move(what));
}

std::shared_ptr<void> Session::Kept(WireHandle object) {
  const std::lock_guard lock(kept_mutex_);
  const auto end = kept_.upper_bound(object);
  return end == kept_.begin() || std::prev(end)->first != object ? nullptr : std::prev(end)->second;
}

void Session::Drop(WireHandle object, const std::shared_ptr<void>& what) {
  const std::lock_guard lock(kept_mutex_);
  const auto [begin, end] = kept_.equal_range(object);
  const auto found = std::find_if(begin, end, [&](const auto& entry) { return entry.second == what; });
  if (found != end) kept_.erase(found);
}

}  // namespace causeway::host
