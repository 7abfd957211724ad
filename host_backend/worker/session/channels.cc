// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/session/channels.h"

#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "host_backend/common/result.h"
#include "host_backend/worker/session/deferred_replies.h"
#include "host_backend/worker/session/dispatcher.h"

namespace causeway::host {
namespace {

// Copies the large body of a request out of the region. Nothing: the record names more than it lends.
std::optional<Reader> TakeLarge(Reader& record, std::span<const std::byte> bulk, LastingBuffer& body) {
  const auto bytes = record.Get<uint32_t>();
  const std::span<std::byte> room = body.Get();
  if (!record.ok() || bytes > bulk.size() || bytes > room.size()) return {};
  if (bytes != 0) std::memcpy(room.data(), bulk.data(), bytes);
  return Reader(room.first(bytes));
}

}  // namespace

LastingBuffer::~LastingBuffer() {
  if (base_ != nullptr) munmap(base_, kBulkBytes);
}

std::span<std::byte> LastingBuffer::Get() {
  if (base_ == nullptr) {
    void* mapped =
        mmap(nullptr, kBulkBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return {};
    base_ = static_cast<std::byte*>(mapped);
  }
  return {base_, kBulkBytes};
}

Channels::Channels(Session& session, Dispatcher& dispatcher, ServerTransport& transport)
    : session_(session), dispatcher_(dispatcher), transport_(transport) {}

void Channels::Join() {
  for (std::thread& thread : threads_) thread.join();
}

void Channels::Open(uint32_t channel) {
  if (channel >= kChannelCount) return;
  const std::lock_guard lock(mutex_);
  if (opened_ >> channel & 1) return;
  opened_ |= uint64_t{1} << channel;
  try {
    threads_.emplace_back([this, channel] { Serve(channel); });
  } catch (const std::system_error& error) {
    session_.Fail(NoThreadText(error));
  }
}

[[gnu::hot]] bool Channels::PutReply(uint32_t channel, const RecordHeader& reply,
                                     std::span<const std::byte> body) {
  std::byte* space = transport_.ReserveReply(channel, sizeof reply + body.size());
  if (space == nullptr) return false;
  PutHeader(space, reply);
  if (!body.empty()) std::memcpy(space + sizeof reply, body.data(), body.size());
  return true;
}

// Tells the guest to fetch what kernels have printed and the driver has logged. Looking costs system calls,
// which is more than a message. Kernels print only where the guest says that they may; a failed assertion is
// an error; what else the driver writes may come some milliseconds later.
[[gnu::hot]] void Channels::NoteText(RecordHeader* reply) {
  const auto op = static_cast<Op>(reply->op);
  if (op == Op::kFetchOutput) return;
  const bool expected = (reply->flags & kMayPrint) != 0 || reply->result != CUDA_SUCCESS;
  if ((TraitsOf(op).Has(traits::kPrintsOutput) && (expected || session_.output().IsLookDue()) &&
       session_.output().Pending()) ||
      session_.logs().Pending())
    reply->flags |= kOutputPending;
}

bool Channels::SendDeferred(uint32_t channel, DeferredReplies& replies, bool all) {
  while (!replies.empty()) {
    if (session_.stopped()) return false;
    if (!all && !replies.full() && transport_.RequestReady(channel)) return true;
    RecordHeader reply;
    if (!replies.Take(&reply)) continue;
    if ((reply.flags & kStagedLast) != 0) NoteText(&reply);
    if (!PutReply(channel, reply, {})) return false;
    if (replies.empty()) session_.objects().RestRequest();
    transport_.PublishReply(channel, sizeof reply);
  }
  return true;
}

[[gnu::hot]] void Channels::Serve(uint32_t channel) {
  prctl(PR_SET_NAME, ("channel-" + std::to_string(channel)).c_str());
  // Not gone with this thread: a copy into it may still be under way when the session ends.
  std::vector<std::byte>& body = reply_bodies_[channel];
  body.resize(kMaxChannelRecordBytes - sizeof(RecordHeader));
  LargeBody& large = large_bodies_[channel];
  DeferredReplies replies;
  for (;;) {
    std::span<const std::byte> record;
    if (!replies.empty() && !SendDeferred(channel, replies, session_.objects().UsesMany())) return;
    if (replies.empty()) session_.objects().EndRequest();  // their events must stay
    const ReceiveStatus status = transport_.ReceiveRequest(channel, &record);
    if (status == ReceiveStatus::kCorrupt) session_.Breach(transport_.CorruptReason());
    if (status != ReceiveStatus::kRecord) return;
    const auto header = ReadHeader<RecordHeader>(record);
    if (!dispatcher_.WaitFor(header)) return;
    const bool staged = MayBeDeferred(header);
    if (!staged && !replies.empty() && !SendDeferred(channel, replies, true)) return;
    Reader in(record.subspan(sizeof header));
    Writer out(body);
    std::span<std::byte> bulk = transport_.BulkOf(channel, header);
    const std::span<std::byte> lent = bulk;
    const bool large_reply = (header.flags & kLargeReply) != 0;
    if ((header.flags & kLargeRequest) != 0) {
      const std::optional<Reader> taken = TakeLarge(in, lent, large.request);
      if (!taken) {
        session_.Breach("a request names more bytes than it lends");
        return;
      }
      in = *taken;
      bulk = {};
    }
    if (large_reply) {
      const std::span<std::byte> room = large.reply.Get();
      out = Writer(room.first(std::min(lent.size(), room.size())));
      bulk = {};
    }
    Request request{.header = header, .in = in, .out = out, .channel = channel, .bulk = bulk};
    request.staged = staged;
    RecordHeader reply{};
    reply.op = header.op;
    reply.flags = header.flags & kMayPrint;  // for NoteText
    reply.bulk_offset = header.bulk_offset;
    reply.result = session_.Execute(request);
    reply.bulk_bytes = request.bulk_written;
    if (staged) {
      reply.flags |= header.flags & kStagedLast;
      replies.Add(reply, request.done);
      transport_.DoneRequest(channel);
      continue;
    }
    size_t bytes = out.size();
    if (large_reply) {
      if (bytes != 0) std::memcpy(lent.data(), large.reply.Get().data(), bytes);
      reply.bulk_bytes = static_cast<uint32_t>(std::exchange(bytes, 0));
    }
    NoteText(&reply);
    if (!PutReply(channel, reply, {body.data(), bytes})) return;
    session_.objects().RestRequest();
    transport_.PublishReply(channel, sizeof reply + bytes);  // first: somebody waits for it
    transport_.DoneRequest(channel);
    session_.objects().EndRequest();
  }
}

CUresult Serve_kOpenChannel(Session& session, Request& request) {
  const auto body = request.in.Get<OpenChannelBody>();
  if (!request.in.ok() || body.channel >= kChannelCount) return CUDA_ERROR_INVALID_VALUE;
  session.part<Channels>().Open(body.channel);
  return CUDA_SUCCESS;
}

}  // namespace causeway::host
