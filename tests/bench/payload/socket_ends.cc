// SPDX-License-Identifier: Apache-2.0
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <linux/errqueue.h>  // needs <time.h> before it

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/bench/payload/ends.h"

namespace causeway::payload {

Outcome Refused(const std::string& what, int error) {
  constexpr int kLacking[] = {ENOSYS, EPERM, EACCES, EINVAL, EOPNOTSUPP, ENOPROTOOPT, ENOMEM, ENOBUFS};
  const bool lacks = std::find(std::begin(kLacking), std::end(kLacking), error) != std::end(kLacking);
  return {lacks ? Status::kLacks : Status::kFailed, what + ": " + std::strerror(error)};
}

Outcome SendWhole(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return Refused("send", errno);
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return {};
}

Outcome ReceiveWhole(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t received = recv(fd, bytes.data(), bytes.size(), MSG_WAITALL);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0) return Refused("recv", errno);
    if (received == 0) return {Status::kFailed, "the stream has ended early"};
    bytes = bytes.subspan(static_cast<size_t>(received));
  }
  return {};
}

namespace {

class PlainSender final : public SendingEnd {
 public:
  explicit PlainSender(int fd) : fd_(fd) {}
  Outcome Send(std::span<const std::span<const std::byte>> pieces) override {
    for (const auto piece : pieces)
      if (Outcome outcome = SendWhole(fd_, piece); !outcome.done()) return outcome;
    return {};
  }

 private:
  const int fd_;
};

// The kernel numbers the calls that have sent something, and tells by ranges of these numbers, in the socket's queue of errors, which
// memory it does not need any more.
class ZeroCopySender final : public SendingEnd {
 public:
  explicit ZeroCopySender(int fd) : fd_(fd) {}

  static Outcome SwitchOn(int fd) {
    const int on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) != 0) return Refused("SO_ZEROCOPY", errno);
    return {};
  }

  Outcome Send(std::span<const std::span<const std::byte>> pieces) override {
    for (std::span<const std::byte> piece : pieces) {
      while (!piece.empty()) {
        const ssize_t sent = send(fd_, piece.data(), piece.size(), MSG_NOSIGNAL | MSG_ZEROCOPY);
        // No more memory of the process may be locked, or no more notices may wait: the next notice gives room.
        if (sent < 0 && errno == ENOBUFS && notices_.told < sends_) {
          if (Outcome outcome = AwaitNotice(); !outcome.done()) return outcome;
          continue;
        }
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return Refused("send with MSG_ZEROCOPY", errno);
        ++sends_;
        piece = piece.subspan(static_cast<size_t>(sent));
      }
      ReadNotices();
    }
    return {};
  }

  Outcome AwaitUnused() override {
    while (notices_.told < sends_)
      if (Outcome outcome = AwaitNotice(); !outcome.done()) return outcome;
    return {};
  }

  Notices notices() const override { return notices_; }

 private:
  Outcome AwaitNotice() {
    constexpr int kPatienceMs = 5000;
    const uint64_t told = notices_.told;
    pollfd errors{fd_, 0, 0};
    poll(&errors, 1, kPatienceMs);
    ReadNotices();
    if (notices_.told == told)
      return {Status::kLacks, "the kernel has not told within 5 s that it is done with the memory"};
    return {};
  }

  void ReadNotices() {
    while (true) {
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(sock_extended_err) + sizeof(sockaddr_in6))];
      msghdr message{};
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      if (recvmsg(fd_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
      for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
        sock_extended_err notice{};
        if (each->cmsg_len < CMSG_LEN(sizeof notice)) continue;
        std::memcpy(&notice, CMSG_DATA(each), sizeof notice);
        if (notice.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
        const uint32_t sends = notice.ee_data - notice.ee_info + 1;
        notices_.told += sends;
        if ((notice.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0) notices_.copied += sends;
      }
    }
  }

  const int fd_;
  uint64_t sends_ = 0;
  Notices notices_;
};

// Seals and sends in parts, as a session's connection does, so that the peer opens one while the next is sealed.
class RecordSender final : public SendingEnd {
 public:
  RecordSender(int fd, std::unique_ptr<TlsRecords> records) : fd_(fd), records_(std::move(records)) {}
  Outcome Send(std::span<const std::span<const std::byte>> pieces) override {
    for (std::span<const std::byte> piece : pieces) {
      for (size_t at = 0; at < piece.size(); at += kWireBytes) {
        if (!records_->Seal(piece.subspan(at, std::min(kWireBytes, piece.size() - at))))
          return {Status::kFailed, "a record could not be sealed"};
        records_->TakeOutput(wire_);
        if (Outcome outcome = SendWhole(fd_, wire_); !outcome.done()) return outcome;
      }
    }
    return {};
  }

 private:
  const int fd_;
  const std::unique_ptr<TlsRecords> records_;
  std::vector<std::byte> wire_;
};

// Gives the staging pieces in turns.
class Staging {
 public:
  explicit Staging(std::span<std::byte> all) : all_(all) {}
  std::span<std::byte> At(uint64_t bytes) const { return all_.subspan(bytes % all_.size(), kPieceBytes); }

 private:
  const std::span<std::byte> all_;
};

class PlainReceiver final : public ReceivingEnd {
 public:
  explicit PlainReceiver(std::span<std::byte> staging) : staging_(staging) {}
  Outcome Receive(int fd, uint64_t bytes, const Taker& take) override {
    for (uint64_t at = 0; at < bytes; at += kPieceBytes) {
      if (Outcome outcome = ReceiveWhole(fd, staging_.At(at)); !outcome.done()) return outcome;
      if (take) take(at, staging_.At(at));
    }
    return {};
  }

 private:
  const Staging staging_;
};

class RecordReceiver final : public ReceivingEnd {
 public:
  RecordReceiver(std::span<std::byte> staging, std::unique_ptr<TlsRecords> records)
      : staging_(staging), records_(std::move(records)), wire_(kWireBytes) {}
  Outcome Receive(int fd, uint64_t bytes, const Taker& take) override {
    for (uint64_t at = 0; at < bytes; at += kPieceBytes) {
      if (Outcome outcome = ReceivePiece(fd, staging_.At(at)); !outcome.done()) return outcome;
      if (take) take(at, staging_.At(at));
    }
    return {};
  }

 private:
  Outcome ReceivePiece(int fd, std::span<std::byte> plain) {
    while (!plain.empty()) {
      const ptrdiff_t opened = records_->Open(plain);
      if (opened < 0) return {Status::kFailed, "a record could not be opened"};
      plain = plain.subspan(static_cast<size_t>(opened));
      if (opened > 0) continue;
      const auto room = std::span(wire_).first(records_->Wanted(plain.size(), wire_.size()));
      if (Outcome outcome = ReceiveWhole(fd, room); !outcome.done()) return outcome;
      records_->Received(room);
    }
    return {};
  }

  const Staging staging_;
  const std::unique_ptr<TlsRecords> records_;
  std::vector<std::byte> wire_;
};

}  // namespace

std::unique_ptr<SendingEnd> MakeSendingEnd(Sends sends, int fd, std::span<std::byte> memory,
                                           const TlsTraffic& traffic, Outcome* outcome) {
  switch (sends) {
    case Sends::kSend:
      return std::make_unique<PlainSender>(fd);
    case Sends::kZeroCopy:
      *outcome = ZeroCopySender::SwitchOn(fd);
      if (!outcome->done()) return nullptr;
      return std::make_unique<ZeroCopySender>(fd);
    case Sends::kRecords:
      if (auto records = TlsRecords::Make(traffic); records != nullptr)
        return std::make_unique<RecordSender>(fd, std::move(records));
      *outcome = {Status::kFailed, "libcrypto makes no records"};
      return nullptr;
    default:
      return MakeUringSendingEnd(sends, fd, memory, outcome);
  }
}

std::unique_ptr<ReceivingEnd> MakeReceivingEnd(Receives receives, std::span<std::byte> staging,
                                               const TlsTraffic& traffic, Outcome* outcome) {
  switch (receives) {
    case Receives::kRecv:
      return std::make_unique<PlainReceiver>(staging);
    case Receives::kRecords:
      if (auto records = TlsRecords::Make(traffic); records != nullptr)
        return std::make_unique<RecordReceiver>(staging, std::move(records));
      *outcome = {Status::kFailed, "libcrypto makes no records"};
      return nullptr;
    default:
      return MakeUringReceivingEnd(receives, staging, outcome);
  }
}

}  // namespace causeway::payload
