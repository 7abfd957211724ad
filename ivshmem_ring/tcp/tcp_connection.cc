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
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

namespace causeway {
namespace {

constexpr size_t kSealTogetherBytes = 16u << 10;  // a record of TLS
constexpr size_t kSealPieceBytes = 128u << 10;
// What is received at once where much was received as bulk bytes before: some headers and records.
constexpr size_t kMuchBulk = 64u << 10, kBehindBulkBytes = 512;
constexpr size_t kLargePage = 2u << 20;
constexpr size_t kMappedBytes = size_t{kBulkBuffers} * kBulkBytes + kLargePage;  // with room for the boundary

std::string ErrnoText() {
  return std::generic_category().message(errno);
}

// Bytes of a guest's program are sent from where they lie, and received there. If the program has unmapped them meanwhile, it gets
// the signal that it would get from the driver's own access.
void TouchAsTheProgramDoes(void* first, size_t bytes, bool writes) {
  constexpr size_t kPage = 4096;
  auto* const begin = static_cast<char*>(first);
  for (char* at = begin; at < begin + bytes; at += kPage - reinterpret_cast<uintptr_t>(at) % kPage) {
    const std::atomic_ref<char> byte(*at);
    writes ? byte.fetch_or(0) : byte.load(std::memory_order_relaxed);
  }
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

BulkMemory::BulkMemory()
    : mapped_(mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0)) {
  if (mapped_ == MAP_FAILED) throw std::bad_alloc();
  const uintptr_t address = reinterpret_cast<uintptr_t>(mapped_);
  first_ = static_cast<std::byte*>(mapped_) + (kLargePage - address % kLargePage) % kLargePage;
}

BulkMemory::~BulkMemory() {
  munmap(mapped_, kMappedBytes);
}

TcpConnection::TcpConnection(int fd, std::unique_ptr<StreamLayer> layer)
    : fd_(fd), layer_(std::move(layer)), buffer_(kBufferBytes) {
  static_assert(kBufferBytes >= sizeof(FrameHeader) + kMaxMainRecordBytes);
  if (layer_ != nullptr) wire_.resize(kBufferBytes);
  PrepareSocket(fd_);
}

void TcpConnection::PrepareSocket(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0) fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  SetTcpOptions(fd, kKeepAlive);
  const timeval second{1, 0};  // after which ReceiveRaw waits again
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
}

TcpConnection::~TcpConnection() {
  close(fd_);
}

// Limits how long one send may block. The guest's Break leaves the sending direction open, so that nothing else would wake a thread that is
// blocked in a send.
void TcpConnection::BoundSends(int fd) {
  const timeval second{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
}

void TcpConnection::Shutdown() {
  if (resumption_ != nullptr) resumption_->End();  // first, so that no other socket comes after this one
  shutdown(fd_, SHUT_RDWR);
}

std::string TcpConnection::SendAll(std::span<const std::span<const std::byte>> parts, bool waits) {
  return layer_ == nullptr ? SendRaw(parts, waits) : SealAndSend(parts, waits);
}

// Small parts go into one record of the layer, whose own bytes and work would otherwise count several times. Large ones are
// sent piece by piece, so that the peer opens the first while the next is sealed.
std::string TcpConnection::SealAndSend(std::span<const std::span<const std::byte>> parts, bool waits) {
  sealing_.clear();
  const auto seal_and_send = [&](std::span<const std::byte> plain) -> std::string {
    if (!layer_->Seal(plain)) return "the connection's encryption has ended";
    layer_->TakeOutput(sealed_);
    const std::array<std::span<const std::byte>, 1> wire = {std::span<const std::byte>(sealed_)};
    return SendRaw(wire, waits);
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

bool TcpConnection::SendVectors(std::span<iovec>* vectors, bool waits, std::string* failure) {
  while (!vectors->empty()) {
    if (waits && resumption_ != nullptr && down()) {
      *failure = "the connection is lost";
      return false;
    }
    msghdr message{};
    message.msg_iov = vectors->data();
    message.msg_iovlen = vectors->size();
    const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL | (waits ? 0 : MSG_DONTWAIT));
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (waits && (errno == EAGAIN || errno == EWOULDBLOCK) && resumption_ != nullptr)
        continue;  // a second is over
      if (errno == EFAULT) {
        for (const iovec& each : *vectors) TouchAsTheProgramDoes(each.iov_base, each.iov_len, false);
        continue;
      }
      if (waits || (errno != EAGAIN && errno != EWOULDBLOCK))
        *failure = "sending to the peer failed: " + ErrnoText();
      return false;
    }
    size_t left = static_cast<size_t>(sent);
    for (; !vectors->empty() && left >= vectors->front().iov_len; *vectors = vectors->subspan(1))
      left -= vectors->front().iov_len;
    if (left == 0) continue;
    iovec& first = vectors->front();
    first = {static_cast<std::byte*>(first.iov_base) + left, first.iov_len - left};
  }
  return true;
}

bool TcpConnection::SendUnsent(bool waits, std::string* failure) {
  if (unsent_.empty()) return true;
  iovec vector{unsent_.data(), unsent_.size()};
  std::span<iovec> rest(&vector, 1);
  const bool done = SendVectors(&rest, waits, failure);
  unsent_.erase(unsent_.begin(),
                done ? unsent_.end() : unsent_.end() - static_cast<ptrdiff_t>(vector.iov_len));
  return done;
}

std::string TcpConnection::SendRaw(std::span<const std::span<const std::byte>> parts, bool waits) {
  std::array<iovec, kMostParts> vectors;
  size_t count = 0;
  for (const auto& part : parts)
    if (!part.empty()) vectors[count++] = {const_cast<std::byte*>(part.data()), part.size()};
  std::span<iovec> rest = std::span(vectors).first(count);
  std::string failure;
  if (SendUnsent(waits, &failure)) SendVectors(&rest, waits, &failure);
  for (const iovec& vector : rest) {
    const auto* begin = static_cast<const std::byte*>(vector.iov_base);
    if (failure.empty()) unsent_.insert(unsent_.end(), begin, begin + vector.iov_len);
  }
  return failure;
}

std::string TcpConnection::Send(const FrameHeader& header, std::span<const std::byte> record,
                                std::span<const std::byte> bulk, uint64_t* sent) {
  FrameHeader frame = header;
  Bulk leaving{bulk, {}};
  // Before the lock, so that no other frame waits for it.
  if (compressor_ != nullptr && compressor_->MayCompress(bulk.size()))
    leaving.compressed = compressor_->Compress(bulk);
  if (leaving.compressed.bytes != nullptr) {
    frame.kind = FrameKind::kCompressed;
    leaving.bytes = {leaving.compressed.bytes.get(), leaving.compressed.size};
  }
  const std::array<std::span<const std::byte>, 2> parts = {std::as_bytes(std::span(&frame, 1)), record};
  std::unique_lock lock(send_mutex_);
  while (resumption_ != nullptr && !resumption_->over()) {
    resumption_->Prune();
    if (resumption_->sent.HasRoom(kBatchBytes + sizeof header + record.size(), leaving.bytes.size())) break;
    const uint64_t acknowledged = resumption_->sent.begin();
    lock.unlock();
    resumption_->AwaitAcknowledgement(acknowledged);
    lock.lock();
  }
  std::string failure = SendBehindWaiting(parts, std::move(leaving), true);
  if (sent != nullptr && resumption_ != nullptr) *sent = resumption_->sent.end();
  return failure;
}

// Whoever takes what waits holds send_mutex_ until it is sent, so that nobody else's frame overtakes it. A thread that sends a request
// has read the number of the last record that was put, and therefore sees here that records wait, or that another thread took them.
std::string TcpConnection::SendBehindWaiting(std::span<const std::span<const std::byte>> parts, Bulk bulk,
                                             bool waits) {
  std::array<std::span<const std::byte>, kMostParts> all;
  size_t count = 0;
  if (resumption_ != nullptr && resumption_->Untold() >= Resumption::kAcknowledgeBytes)
    all[count++] = MakeAcknowledgement();
  if (rate_to_tell_.load(std::memory_order_relaxed) != 0)
    all[count++] = MakeArrivalRate(rate_to_tell_.exchange(0, std::memory_order_relaxed));
  if (waiting_bytes_.load(std::memory_order_relaxed) != 0) {
    const std::lock_guard lock(waiting_mutex_);
    leaving_.clear();
    std::swap(leaving_, waiting_);
    waiting_bytes_.store(0, std::memory_order_relaxed);
    all[count++] = leaving_;
  }
  for (const auto& part : parts) all[count++] = part;
  if (resumption_ != nullptr) return KeepAndSend(std::span(all).first(count), std::move(bulk), waits);
  all[count++] = bulk.bytes;
  return SendAll(std::span(all).first(count), waits);
}

bool TcpConnection::Put(const FrameHeader& header, std::span<const std::byte> record) {
  const std::span<const std::byte> head = std::as_bytes(std::span(&header, 1));
  const std::lock_guard lock(waiting_mutex_);
  if (waiting_.size() + head.size() + record.size() > kBatchBytes) return false;
  if (waiting_.capacity() < kBatchBytes) waiting_.reserve(kBatchBytes);
  waiting_.insert(waiting_.end(), head.begin(), head.end());
  waiting_.insert(waiting_.end(), record.begin(), record.end());
  waiting_bytes_.store(waiting_.size(), std::memory_order_relaxed);
  return true;
}

bool TcpConnection::Flush(std::string* failure) {
  const std::unique_lock lock(send_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return true;  // whoever sends may have taken what waited before something came to it
  if (resumption_ != nullptr) {
    if (down()) unsent_.clear();  // it is kept, too
    resumption_->Prune();
    if (!resumption_->sent.HasRoom(2 * kBatchBytes, 0)) return true;
  }
  if (!SendUnsent(false, failure)) {
    if (resumption_ != nullptr && !failure->empty()) Break(std::exchange(*failure, ""));
    return true;
  }
  {
    // Not waiting_bytes_: what was put before the caller said that it looks must be seen (FrameReader::Remind).
    const std::lock_guard waiting(waiting_mutex_);
    if (waiting_.empty()) return false;
  }
  *failure = SendBehindWaiting({}, {}, false);
  return true;
}

void TcpConnection::SendBeat() {
  std::unique_lock lock(send_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  int unsent = 0;
  // With nothing unsent the whole send buffer is free, so that these 16 bytes cannot block.
  if (down() || ioctl(fd_, SIOCOUTQ, &unsent) != 0 || unsent != 0) return;
  const FrameHeader beat{kMainLink, 0, 0, FrameKind::kBeat};
  const std::array<std::span<const std::byte>, 1> parts = {std::as_bytes(std::span(&beat, 1))};
  // A failure ends the reader too, which reports it.
  if (resumption_ == nullptr) return (void)SendAll(parts, true);
  resumption_->Prune();
  if (resumption_->sent.HasRoom(sizeof beat, 0)) (void)KeepAndSend(parts, {}, true);
}

uint32_t TcpConnection::SecondsUnacknowledged() {
  constexpr uint32_t kJustNowMs = 1000;
  tcp_info info{};
  socklen_t bytes = sizeof info;
  // While the peer has no room, the kernel asks for it, which counts as a probe until it is answered.
  const bool silent = getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
                      (info.tcpi_unacked != 0 || info.tcpi_probes > 1) &&
                      info.tcpi_last_ack_recv >= kJustNowMs;
  const uint32_t seconds = silent ? unacknowledged_s_.load(std::memory_order_relaxed) + 1 : 0;
  unacknowledged_s_.store(seconds, std::memory_order_relaxed);
  return seconds;
}

ssize_t TcpConnection::ReceiveRaw(std::span<std::byte> out, const WaitPolicy* policy, int wait_flags) {
  const auto receive = [&](int flags) {
    ssize_t received;
    while ((received = recv(fd_, out.data(), out.size(), flags)) < 0 && (errno == EINTR || errno == EFAULT))
      if (errno == EFAULT) TouchAsTheProgramDoes(out.data(), out.size(), true);
    return received;
  };
  // A thread that waits for the rest of a frame may be the one that looks after a silent peer each second.
  const auto receive_waiting = [&] {
    ssize_t received;
    while ((received = receive(wait_flags)) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      if (idle_ != nullptr) idle_();
    return received;
  };
  if (policy == nullptr) return receive(MSG_DONTWAIT);
  if (policy->spin_us + policy->yield_us == 0) return receive_waiting();
  const uint64_t began_us = NowUs();
  for (uint64_t now_us = began_us; now_us - began_us < policy->spin_us + policy->yield_us; now_us = NowUs()) {
    const ssize_t received = receive(MSG_DONTWAIT);
    if (received >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return received;
    if (now_us - began_us >= policy->spin_us) sched_yield();
  }
  return receive_waiting();
}

ssize_t TcpConnection::Receive(std::span<std::byte> out, const WaitPolicy* policy, bool whole) {
  if (layer_ == nullptr) return ReceiveMeasured(out, policy, 0);
  while (true) {
    const ptrdiff_t opened = layer_->Open(out);
    layer_ended_ = opened < 0;
    if (opened != 0) return std::max<ptrdiff_t>(opened, 0);  // the end of the layer is that of the stream
    const std::span<std::byte> wire =
        std::span(wire_).first(whole ? layer_->Wanted(out.size(), wire_.size()) : wire_.size());
    const ssize_t received = ReceiveMeasured(wire, policy, whole ? MSG_WAITALL : 0);
    if (received <= 0) return received;
    layer_->Received(wire.first(static_cast<size_t>(received)));
  }
}

std::span<std::byte> TcpConnection::MakeRoom() {
  if (begin_ != 0) std::memmove(buffer_.data(), &buffer_[begin_], end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  return std::span(buffer_).subspan(end_);
}

std::span<std::byte> TcpConnection::MakeRoomBehindBulk() {
  const std::span<std::byte> room = MakeRoom();
  return std::exchange(behind_bulk_, false) ? room.first(std::min(room.size(), kBehindBulkBytes)) : room;
}

void TcpConnection::NoteEnd(ssize_t received) {
  reason_ =
      received == 0 ? "the peer closed the connection" : "receiving from the peer failed: " + ErrnoText();
}

TcpConnection::Filled TcpConnection::Fill(const WaitPolicy* policy) {
  for (;;) {
    const ssize_t received = Receive(MakeRoomBehindBulk(), policy);
    if (received > 0) {
      end_ += static_cast<size_t>(received);
      NoteReceived(static_cast<size_t>(received));
      return Filled::kSome;
    }
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Filled::kNothing;
    if (!GoesOn(received)) return Filled::kEnded;
  }
}

bool TcpConnection::OpenReceived() {
  if (layer_ == nullptr) return false;
  const ptrdiff_t opened = layer_->Open(MakeRoomBehindBulk());
  if (opened <= 0) return false;
  end_ += static_cast<size_t>(opened);
  if (resumption_ != nullptr) resumption_->NoteReceived(static_cast<size_t>(opened));
  return true;
}

bool TcpConnection::Read(std::span<std::byte> out) {
  behind_bulk_ = out.size() >= kMuchBulk;
  const size_t taken = std::min(out.size(), end_ - begin_);
  if (taken != 0) std::memcpy(out.data(), &buffer_[begin_], taken);
  begin_ += taken;
  out = out.subspan(taken);
  constexpr WaitPolicy kSleep{.spin_us = 0};
  while (!out.empty()) {
    const ssize_t received = Receive(out, &kSleep, true);
    if (received > 0) {
      NoteReceived(static_cast<size_t>(received));
      out = out.subspan(static_cast<size_t>(received));
    } else if (!GoesOn(received)) {
      return false;
    }
  }
  return true;
}

// ---- bulk bytes where both sides can compress them ----

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
