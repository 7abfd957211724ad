// SPDX-License-Identifier: Apache-2.0
// What TcpConnection does where its socket is lost and another one comes in its place.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "ivshmem_ring/tcp/tcp_connection.h"

namespace causeway {

void TcpConnection::MakeResumable(std::function<void()> lost, bool closing_ends) {
  resumption_ = std::make_unique<Resumption>(std::move(lost), closing_ends);
  if (!closing_ends) BoundSends(fd_);
}

void TcpConnection::Break(const std::string& why) {
  resumption_->Lose(why, [this] {
    if (resumption_->closing_ends()) {
      shutdown(fd_, SHUT_RDWR);
      return;
    }
    // The peer takes an end in order for the end of the session, and where only its answers are lost it would hear that end. So none is
    // sent, and the socket ends by a reset when the next one takes its number.
    const linger reset{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    shutdown(fd_, SHUT_RD);
  });
}

// What it has been given counts as sent, even where the connection is down or is lost now: it is sent again.
std::string TcpConnection::KeepAndSend(std::span<const std::span<const std::byte>> parts, Bulk bulk,
                                       bool waits) {
  for (const auto& part : parts) resumption_->sent.Copy(part);
  if (bulk.compressed.bytes != nullptr)
    resumption_->sent.Keep(std::move(bulk.compressed.bytes), bulk.bytes.size());
  else
    resumption_->sent.Refer(bulk.bytes);
  resumption_->NoteSent();
  if (!down()) {
    std::array<std::span<const std::byte>, kMostParts> all;
    std::copy(parts.begin(), parts.end(), all.begin());
    all[parts.size()] = bulk.bytes;
    if (const std::string failure = SendAll(std::span(all).first(parts.size() + 1), waits); !failure.empty())
      Break(failure);
  }
  return resumption_->over() ? why_lost() : std::string();
}

std::span<const std::byte> TcpConnection::MakeAcknowledgement() {
  acknowledgement_ = {{kMainLink, sizeof acknowledgement_.value, 0, FrameKind::kAcknowledge},
                      resumption_->Tell()};
  return std::as_bytes(std::span(&acknowledgement_, 1));
}

void TcpConnection::AcknowledgeSoon() {
  if (resumption_->Untold() < Resumption::kAcknowledgeBytes || down()) return;
  const std::unique_lock lock(send_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // which takes it along, or the next does
  resumption_->Prune();
  if (resumption_->sent.HasRoom(2 * kBatchBytes, 0)) (void)SendBehindWaiting({}, {}, false);
}

void TcpConnection::SayGoodbye() {
  const std::unique_lock lock(send_mutex_, std::try_to_lock);
  const FrameHeader goodbye{kMainLink, 0, 0, FrameKind::kGoodbye};
  const std::array<std::span<const std::byte>, 1> parts = {std::as_bytes(std::span(&goodbye, 1))};
  if (lock.owns_lock() && !down()) (void)SendBehindWaiting(parts, {}, false);
  resumption_->End();
}

void TcpConnection::NoteReceived(size_t bytes) {
  receipts_.store(receipts() + 1, std::memory_order_relaxed);
  if (resumption_ == nullptr) return;
  resumption_->NoteReceived(bytes);
  if (resumption_->Untold() >= Resumption::kForceBytes) AcknowledgeSoon();
}

// A socket that this side has shut gives the same end of the stream; only the peer's own leaves the other direction open.
bool TcpConnection::PeerHasClosed(ssize_t received) const {
  if (received != 0 || layer_ended_ || down()) return false;
  tcp_info info{};
  socklen_t bytes = sizeof info;
  return getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 || info.tcpi_state == TCP_CLOSE_WAIT;
}

bool TcpConnection::GoesOn(ssize_t received) {
  NoteEnd(received);
  if (resumption_ == nullptr) return false;
  if (resumption_->closing_ends() && PeerHasClosed(received)) {
    resumption_->End();
    return false;
  }
  Break(reason_);
  if (resumption_->Park()) return true;
  reason_ = why_lost();
  return false;
}

Resumption::Parked TcpConnection::AwaitLoss(uint64_t grace_us, uint64_t* received, uint64_t* lost_us) {
  const Resumption::Parked parked = resumption_->AwaitParked(grace_us, lost_us);
  *received = resumption_->received();
  return parked;
}

bool TcpConnection::GoOn(int fd, std::unique_ptr<StreamLayer> layer, uint64_t peer_received) {
  const std::lock_guard sending(send_mutex_);
  Resumption& resumption = *resumption_;
  if (peer_received < resumption.acknowledged() || !resumption.Acknowledge(peer_received)) return false;
  resumption.Prune();
  const bool exchanged = resumption.GoOn([&] {
    PrepareSocket(fd);
    if (!resumption.closing_ends()) BoundSends(fd);
    // Its number stays, so that threads that have it need not be told. A program that has closed it does without this socket.
    dup3(fd, fd_, O_CLOEXEC);
    layer_ = std::move(layer);
    layer_ended_ = false;
    unacknowledged_s_.store(0, std::memory_order_relaxed);
    unsent_.clear();
    if (layer_ != nullptr) wire_.resize(kBufferBytes);
  });
  close(fd);
  if (!exchanged) return true;  // it is over
  // The reading thread reads meanwhile, so that the peer, which does the same, does not wait for it.
  std::string failure;
  resumption.sent.From(peer_received, [&](std::span<const std::byte> piece) {
    const std::array<std::span<const std::byte>, 1> parts = {piece};
    failure = SendAll(parts, true);
    return failure.empty();
  });
  if (!failure.empty()) Break(failure);
  return true;
}

}  // namespace causeway
