// SPDX-License-Identifier: Apache-2.0
// What TcpConnection does with bulk bytes where both sides can compress them.
#include <cstring>
#include <new>
#include <utility>

#include "ivshmem_ring/tcp/tcp_connection.h"

namespace causeway {

void TcpConnection::MakeCompressing(uint64_t assumed_rate) {
  compressor_ = std::make_unique<BulkCompressor>(assumed_rate);
}

std::span<const std::byte> TcpConnection::MakeArrivalRate(uint64_t rate) {
  arrival_rate_ = {{kMainLink, sizeof arrival_rate_.value, 0, FrameKind::kArrivalRate}, rate};
  return std::as_bytes(std::span(&arrival_rate_, 1));
}

TcpConnection::BulkRead TcpConnection::ReadBulk(const FrameHeader& frame, std::span<std::byte> out) {
  if (frame.kind != FrameKind::kCompressed)
    return ReadMeasured(out, ArrivalMeter::kLeastBytes) ? BulkRead::kWhole : BulkRead::kEnded;
  uint32_t bytes = 0;
  if (!Read(std::as_writable_bytes(std::span(&bytes, 1)))) return BulkRead::kEnded;
  // What is not less would have been sent as it is. So no more has to be received than `out` has room for.
  if (bytes == 0 || bytes >= out.size() || out.size() > kBulkBytes) return BulkRead::kMalformed;
  const std::span<std::byte> block = compressor_->Room(bytes);
  if (!ReadMeasured(block, ArrivalMeter::kLeastCompressed)) return BulkRead::kEnded;
  return BulkCompressor::Decompress(block, out) ? BulkRead::kWhole : BulkRead::kMalformed;
}

ssize_t TcpConnection::ReceiveMeasured(std::span<std::byte> out, const WaitPolicy* policy, int flags) {
  if (waited_us_ == nullptr) return ReceiveRaw(out, policy, flags);
  const uint64_t began_us = NowUs();
  const ssize_t received = ReceiveRaw(out, policy, flags);
  *waited_us_ += NowUs() - began_us;
  return received;
}

// Only the time in the socket counts: decryption is no slow link.
bool TcpConnection::ReadMeasured(std::span<std::byte> out, size_t least) {
  const size_t buffered = end_ - begin_;
  if (compressor_ == nullptr || out.size() < least + buffered) return Read(out);
  const uint64_t sockets = resumption_ != nullptr ? resumption_->sockets() : 0;
  uint64_t waited_us = 0;
  waited_us_ = &waited_us;
  const bool whole = Read(out);
  waited_us_ = nullptr;
  if (!whole) return false;
  // How long another socket took to come says nothing of the link.
  if (resumption_ != nullptr && resumption_->sockets() != sockets) return true;
  const uint64_t rate = compressor_->NoteArrival(out.size() - buffered, waited_us);
  if (rate != 0) rate_to_tell_.store(rate, std::memory_order_relaxed);
  return true;
}

}  // namespace causeway
