// SPDX-License-Identifier: Apache-2.0
// Whole frames over a stream socket, with the socket options that make a lost peer visible.
#include "ivshmem_ring/tcp/tcp_connection.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace causeway {
namespace {

constexpr size_t kReadBufferBytes = 128u << 10;
static_assert(kReadBufferBytes >= sizeof(FrameHeader) + kMaxMainRecordBytes);
constexpr size_t kSealTogetherBytes = 16u << 10;  // a record of TLS
constexpr size_t kSealPieceBytes = 128u << 10;
// An idle peer whose machine vanished is noticed within 15 s. No TCP_USER_TIMEOUT: it would also end a session whose peer only
// stopped reading for a while (a full queue, a debugger).
constexpr KeepAlive kKeepAlive{.idle_s = 5, .interval_s = 3, .probes = 3};

std::string ErrnoText() {
  return std::generic_category().message(errno);
}

}  // namespace

void SetTcpOptions(int socket, const KeepAlive& keep_alive) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &keep_alive.idle_s, sizeof keep_alive.idle_s);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &keep_alive.interval_s, sizeof keep_alive.interval_s);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &keep_alive.probes, sizeof keep_alive.probes);
}

TcpConnection::TcpConnection(int fd, std::unique_ptr<StreamLayer> layer)
    : fd_(fd), layer_(std::move(layer)), buffer_(kReadBufferBytes) {
  if (layer_ != nullptr) wire_.resize(kReadBufferBytes);
  const int flags = fcntl(fd_, F_GETFL);
  if (flags >= 0) fcntl(fd_, F_SETFL, flags & ~O_NONBLOCK);
  SetTcpOptions(fd_, kKeepAlive);
}

TcpConnection::~TcpConnection() {
  close(fd_);
}

void TcpConnection::Shutdown() {
  shutdown(fd_, SHUT_RDWR);
}

std::string TcpConnection::SendAll(std::span<const std::span<const std::byte>> parts) {
  return layer_ == nullptr ? SendRaw(parts) : SealAndSend(parts);
}

// Small parts go into one record of the layer, whose own bytes and work would otherwise count several times. Large ones are
// sent piece by piece, so that the peer opens the first while the next is sealed.
std::string TcpConnection::SealAndSend(std::span<const std::span<const std::byte>> parts) {
  sealing_.clear();
  const auto seal_and_send = [&](std::span<const std::byte> plain) -> std::string {
    if (!layer_->Seal(plain)) return "the connection's encryption has ended";
    layer_->TakeOutput(sealed_);
    const std::array<std::span<const std::byte>, 1> wire = {std::span<const std::byte>(sealed_)};
    return SendRaw(wire);
  };
  for (const auto& part : parts) {
    if (sealing_.size() + part.size() <= kSealTogetherBytes) {
      sealing_.insert(sealing_.end(), part.begin(), part.end());
      continue;
    }
    if (!sealing_.empty()) {
      if (std::string failure = seal_and_send(sealing_); !failure.empty()) return failure;
      sealing_.clear();
    }
    for (size_t at = 0; at < part.size(); at += kSealPieceBytes) {
      const auto piece = part.subspan(at, std::min(kSealPieceBytes, part.size() - at));
      if (std::string failure = seal_and_send(piece); !failure.empty()) return failure;
    }
  }
  return sealing_.empty() ? std::string() : seal_and_send(sealing_);
}

std::string TcpConnection::SendRaw(std::span<const std::span<const std::byte>> parts) {
  std::array<iovec, 3> vectors;
  size_t count = 0;
  for (const auto& part : parts)
    if (!part.empty()) vectors[count++] = {const_cast<std::byte*>(part.data()), part.size()};
  size_t first = 0;
  while (first < count) {
    msghdr message{};
    message.msg_iov = &vectors[first];
    message.msg_iovlen = count - first;
    const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return "sending to the peer failed: " + ErrnoText();
    }
    size_t left = static_cast<size_t>(sent);
    while (first < count && left >= vectors[first].iov_len) left -= vectors[first++].iov_len;
    if (first < count) {
      vectors[first].iov_base = static_cast<std::byte*>(vectors[first].iov_base) + left;
      vectors[first].iov_len -= left;
    }
  }
  return {};
}

std::string TcpConnection::Send(const FrameHeader& header, std::span<const std::byte> record,
                                std::span<const std::byte> bulk) {
  const std::array<std::span<const std::byte>, 3> parts = {std::as_bytes(std::span(&header, 1)), record,
                                                           bulk};
  std::lock_guard lock(send_mutex_);
  return SendAll(parts);
}

void TcpConnection::SendBeat() {
  std::unique_lock lock(send_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  int unsent = 0;
  // With nothing unsent the whole send buffer is free, so that these 16 bytes cannot block.
  if (ioctl(fd_, SIOCOUTQ, &unsent) != 0 || unsent != 0) return;
  const FrameHeader beat{kMainLink, 0, 0, FrameKind::kBeat};
  const std::array<std::span<const std::byte>, 1> parts = {std::as_bytes(std::span(&beat, 1))};
  (void)SendAll(parts);  // a failure ends the reader too, which reports it
}

ssize_t TcpConnection::ReceiveRaw(std::span<std::byte> out, const WaitPolicy* policy) {
  const auto receive = [&](int flags) {
    ssize_t received;
    while ((received = recv(fd_, out.data(), out.size(), flags)) < 0 && errno == EINTR) continue;
    return received;
  };
  if (policy == nullptr) return receive(MSG_DONTWAIT);
  if (policy->spin_us + policy->yield_us == 0) return receive(0);
  const uint64_t began_us = NowUs();
  for (uint64_t now_us = began_us; now_us - began_us < policy->spin_us + policy->yield_us; now_us = NowUs()) {
    const ssize_t received = receive(MSG_DONTWAIT);
    if (received >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return received;
    if (now_us - began_us >= policy->spin_us) sched_yield();
  }
  return receive(0);
}

ssize_t TcpConnection::Receive(std::span<std::byte> out, const WaitPolicy* policy) {
  if (layer_ == nullptr) return ReceiveRaw(out, policy);
  while (true) {
    const ptrdiff_t opened = layer_->Open(out);
    if (opened != 0) return std::max<ptrdiff_t>(opened, 0);  // the end of the layer is that of the stream
    const ssize_t received = ReceiveRaw(wire_, policy);
    if (received <= 0) return received;
    layer_->Received(std::span(wire_).first(static_cast<size_t>(received)));
  }
}

std::span<std::byte> TcpConnection::MakeRoom() {
  if (begin_ != 0) std::memmove(buffer_.data(), &buffer_[begin_], end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  return std::span(buffer_).subspan(end_);
}

void TcpConnection::NoteEnd(ssize_t received) {
  reason_ =
      received == 0 ? "the peer closed the connection" : "receiving from the peer failed: " + ErrnoText();
}

TcpConnection::Filled TcpConnection::Fill(const WaitPolicy* policy) {
  const ssize_t received = Receive(MakeRoom(), policy);
  if (received > 0) {
    receipts_.store(receipts() + 1, std::memory_order_relaxed);
    end_ += static_cast<size_t>(received);
    return Filled::kSome;
  }
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Filled::kNothing;
  NoteEnd(received);
  return Filled::kEnded;
}

bool TcpConnection::OpenReceived() {
  if (layer_ == nullptr) return false;
  const ptrdiff_t opened = layer_->Open(MakeRoom());
  end_ += static_cast<size_t>(std::max<ptrdiff_t>(opened, 0));
  return opened > 0;
}

bool TcpConnection::Read(std::span<std::byte> out) {
  const size_t taken = std::min(out.size(), end_ - begin_);
  if (taken != 0) std::memcpy(out.data(), &buffer_[begin_], taken);
  begin_ += taken;
  out = out.subspan(taken);
  constexpr WaitPolicy kSleep{.spin_us = 0};
  while (!out.empty()) {
    const ssize_t received = Receive(out, &kSleep);
    if (received <= 0) {
      NoteEnd(received);
      return false;
    }
    receipts_.store(receipts() + 1, std::memory_order_relaxed);
    out = out.subspan(static_cast<size_t>(received));
  }
  return true;
}

}  // namespace causeway
