// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/managed/link.h"

#include <algorithm>
#include <cstring>

#include "guest_lib/page_watch/parts.h"

namespace causeway::guest {
namespace {

constexpr uint64_t kAloneBytes = 512u << 10;  // up to here one thread is as fast
constexpr uint64_t kCopiedPartBytes = 64u << 10;

// Neither side is memory that the program can see, so no helper faults here.
void CopyBytes(std::byte* to, const std::byte* from, uint64_t bytes) {
  InParts(bytes, bytes >= kAloneBytes ? kCopiedPartBytes : bytes,
          [=](uint64_t at, uint64_t count) { std::memcpy(to + at, from + at, count); });
}

// The same, but for what is right already: pages that nobody has written stay holes when they are to hold
// zeros; see ManagedAreas. Whether something was not.
bool CopyChanges(std::byte* to, const std::byte* from, uint64_t bytes) {
  std::atomic<bool> changed{false};
  InParts(bytes, bytes >= kAloneBytes ? kCopiedPartBytes : bytes, [=, &changed](uint64_t at, uint64_t count) {
    if (std::memcmp(to + at, from + at, count) == 0) return;
    std::memcpy(to + at, from + at, count);
    changed.store(true, std::memory_order_relaxed);
  });
  return changed;
}

}  // namespace

CUresult ManagedLink::Open() {
  session_ = Session::Get();
  if (session_ == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  PendingPost post(Op::kOpenChannel);
  post.writer().Put(OpenChannelBody{kManagedChannel, 0});
  if (const CUresult result = post.Finish()) return result;
  buffer_[0] = session_->bulk(session_->AcquireBulk());
  // Whoever holds one must not wait for another: the second is a matter of luck.
  uint32_t second = 0;
  if (session_->TryAcquireBulk(&second)) buffer_[buffers_++] = session_->bulk(second);
  return CUDA_SUCCESS;
}

void ManagedLink::ComeAfterPosted() {
  main_sequence_.store(session_->transport().main_sequence(), std::memory_order_release);
}

CUresult ManagedLink::Copy(const std::vector<ManagedSpan>& spans, bool to_host, bool* changed) {
  CUresult result = CUDA_SUCCESS;
  Message* message = nullptr;
  auto send = [&] {
    if (message != nullptr && result == CUDA_SUCCESS) result = Send(to_host);
    message = nullptr;
  };
  for (const ManagedSpan& span : spans) {
    for (uint64_t at = 0; at < span.count && result == CUDA_SUCCESS;) {
      if (message != nullptr && (message->bytes == kBulkBytes || message->body.count == kMaxManagedPieces ||
                                 message->context != span.context || message->body.stream != span.stream)) {
        send();
      }
      if (message == nullptr) {
        if (sent_ == buffers_) result = Collect(to_host, changed);
        message = &message_[(first_ + sent_) % buffers_];
        message->body = {span.stream, 0, 0};
        message->context = span.context;
        message->bytes = 0;
        if (result != CUDA_SUCCESS) break;
      }
      const uint64_t piece = std::min<uint64_t>(kBulkBytes - message->bytes, span.count - at);
      std::byte* const buffer = buffer_[(first_ + sent_) % buffers_].bytes;
      if (to_host) CopyBytes(buffer + message->bytes, span.bytes + at, piece);
      message->place[message->body.count] = span.bytes + at;
      message->piece[message->body.count++] = {span.address + at, piece};
      message->bytes += static_cast<uint32_t>(piece);
      at += piece;
    }
  }
  send();
  while (sent_ > 0) {
    const CUresult collected = Collect(to_host, changed);
    if (result == CUDA_SUCCESS) result = collected;
  }
  return result;
}

CUresult ManagedLink::Send(bool to_host) {
  const uint32_t index = (first_ + sent_) % buffers_;
  const Message& message = message_[index];
  ClientTransport& transport = session_->transport();
  const size_t pieces = message.body.count * sizeof(ManagedPiece);
  const size_t bytes = sizeof(RecordHeader) + sizeof message.body + pieces;
  std::byte* record = transport.ReserveRequest(kManagedChannel, bytes);
  if (record == nullptr) return CUDA_ERROR_EXTERNAL_DEVICE;
  RecordHeader header{};
  header.op = static_cast<uint16_t>(to_host ? Op::kWriteManaged : Op::kReadManaged);
  // What other threads capture is no business of these copies.
  header.flags = static_cast<uint16_t>((to_host ? kBulkToHost : kBulkToGuest) |
                                       static_cast<uint16_t>(CU_STREAM_CAPTURE_MODE_RELAXED));
  header.context = message.context;
  header.main_sequence = main_sequence_.load(std::memory_order_acquire);
  header.bulk_offset = buffer_[index].offset;
  header.bulk_bytes = message.bytes;
  PutHeader(record, header);
  std::memcpy(record + sizeof header, &message.body, sizeof message.body);
  std::memcpy(record + sizeof header + sizeof message.body, message.piece, pieces);
  transport.PublishRequest(kManagedChannel, bytes);
  ++sent_;
  return CUDA_SUCCESS;
}

CUresult ManagedLink::Collect(bool to_host, bool* changed) {
  const uint32_t index = first_;
  first_ = (first_ + 1) % buffers_;
  --sent_;
  const auto reply = session_->transport().AwaitReply(kManagedChannel);
  RecordHeader header;
  if (reply.size() < sizeof header) return CUDA_ERROR_EXTERNAL_DEVICE;
  std::memcpy(&header, reply.data(), sizeof header);
  const auto result = static_cast<CUresult>(header.result);
  if (to_host || result != CUDA_SUCCESS) return result;
  const Message& message = message_[index];
  if (header.bulk_bytes != message.bytes) return CUDA_ERROR_UNKNOWN;
  const std::byte* from = buffer_[index].bytes;
  for (uint32_t i = 0; i < message.body.count; ++i) {
    const uint64_t bytes = message.piece[i].bytes;
    if (CopyChanges(message.place[i], from, bytes) && changed != nullptr) *changed = true;
    from += bytes;
  }
  return CUDA_SUCCESS;
}

}  // namespace causeway::guest
