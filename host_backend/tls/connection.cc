// SPDX-License-Identifier: Apache-2.0
#include "host_backend/tls/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "host_backend/tls/confinement.h"
#include "host_backend/tls/messages.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/tls/tls_session.h"

namespace causeway::tls {
namespace {

constexpr size_t kPieceBytes = 128u << 10;
constexpr size_t kMaxHandshakeBytes = 16u << 10;  // of a guest: two messages, of less than 1 KiB together
constexpr int kFlushLimitMs = 10'000;             // for what is left when the session has ended

// Sends one message and waits for the answer; the listener ends this process where that takes too long.
bool Ask(const TlsQuestion& question, TlsAnswer* answer, int* descriptor) {
  if (send(kListenerFd, &question, sizeof question, MSG_NOSIGNAL) != ssize_t(sizeof question)) return false;
  iovec vector{answer, sizeof *answer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(kListenerFd, &message, 0) != ssize_t(sizeof *answer)) return false;
  answer->text[sizeof answer->text - 1] = '\0';
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (descriptor != nullptr && header != nullptr && header->cmsg_type == SCM_RIGHTS)
    std::memcpy(descriptor, CMSG_DATA(header), sizeof *descriptor);
  return true;
}

bool FindSecret(const std::string& id, KeySecret* secret) {
  TlsQuestion question{};
  question.word = Word::kSecret;
  id.copy(question.id, kKeyIdDigits);
  TlsAnswer answer{};
  if (!Ask(question, &answer, nullptr) || answer.accepted != 1) return false;
  std::memcpy(secret->data(), answer.secret, secret->size());
  // Not left behind; volatile, so that it is not left out.
  for (volatile uint8_t* at = answer.secret; at < answer.secret + sizeof answer.secret; ++at) *at = 0;
  return true;
}

// A socket that never waits, and what it has not taken yet.
class Pipe {
 public:
  explicit Pipe(int fd) : fd_(fd) {}
  int fd() const { return fd_; }
  bool full() const { return at_ < waiting_.size(); }
  std::vector<std::byte>& next() { return waiting_; }  // to be filled while nothing waits

  // Sends as much as the socket takes. False: the connection is over.
  bool Send() {
    while (full()) {
      const ssize_t sent =
          send(fd_, waiting_.data() + at_, waiting_.size() - at_, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return errno == EAGAIN;
      at_ += size_t(sent);
    }
    waiting_.clear();
    at_ = 0;
    return true;
  }
  // Waits until all is sent, at most `limit_ms` for each part that the peer takes.
  void Flush(int limit_ms) {
    while (Send() && full()) {
      pollfd ready{fd_, POLLOUT, 0};
      if (poll(&ready, 1, limit_ms) <= 0) return;
    }
  }

 private:
  int fd_;
  std::vector<std::byte> waiting_;
  size_t at_ = 0;
};

// Some bytes; 0: none are there. Nothing: the connection is over.
std::optional<size_t> Receive(int fd, std::span<std::byte> out) {
  const ssize_t got = recv(fd, out.data(), out.size(), MSG_DONTWAIT);
  if (got > 0) return size_t(got);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return size_t{0};
  return std::nullopt;
}

class Relay {
 public:
  Relay(TlsSession& session, int daemon)
      : session_(session), guest_(kPeerFd), daemon_(daemon), buffer_(kPieceBytes) {}

  // Until one side has ended.
  void Run() {
    // The guest's first bytes may have come with its last ones of the handshake.
    if (!FromGuest(false)) return;
    while (true) {
      std::array<pollfd, 2> ready = {Wanted(guest_, daemon_), Wanted(daemon_, guest_)};
      if (poll(ready.data(), ready.size(), -1) < 0 && errno != EINTR) return;
      constexpr short kGone = POLLERR | POLLNVAL;
      if ((ready[0].revents & kGone) != 0 || !guest_.Send() || !daemon_.Send()) return;
      if (!daemon_.full() && (ready[0].revents & (POLLIN | POLLHUP)) != 0 && !FromGuest(true)) return;
      if (!guest_.full() && (ready[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !FromDaemon()) {
        session_.Close();
        session_.TakeOutput(guest_.next());
        return guest_.Flush(kFlushLimitMs);
      }
    }
  }

 private:
  // What to wait for at one socket. A socket at which nothing is wanted is left out: its end would be reported all the time.
  static pollfd Wanted(const Pipe& pipe, const Pipe& other) {
    const int events = (other.full() ? 0 : POLLIN) | (pipe.full() ? POLLOUT : 0);
    return {events == 0 ? -1 : pipe.fd(), short(events), 0};
  }

  bool FromGuest(bool receive) {
    if (receive) {
      const auto got = Receive(guest_.fd(), buffer_);
      if (!got) return false;
      session_.Received(std::span(buffer_).first(*got));
    }
    // What is received is never longer decrypted than encrypted.
    std::vector<std::byte>& plain = daemon_.next();
    plain.resize(kPieceBytes + kMaxHandshakeBytes);
    const ptrdiff_t opened = session_.Open(plain);
    plain.resize(opened > 0 ? size_t(opened) : 0);
    return opened >= 0 && daemon_.Send();
  }

  bool FromDaemon() {
    const auto got = Receive(daemon_.fd(), buffer_);
    if (!got) return false;
    if (!session_.Seal(std::span(buffer_).first(*got))) return false;
    session_.TakeOutput(guest_.next());
    return guest_.Send();
  }

  TlsSession& session_;
  Pipe guest_, daemon_;
  std::vector<std::byte> buffer_;
};

// Empty: the peer has proved its key. The listener bounds the time.
std::string ShakeHands(TlsSession& session) {
  Pipe guest(kPeerFd);
  std::vector<std::byte> received(kMaxHandshakeBytes);
  size_t total = 0;
  while (true) {
    const TlsSession::Progress progress = session.Handshake();
    session.TakeOutput(guest.next());
    guest.Flush(kFlushLimitMs);
    if (progress == TlsSession::Progress::kDone) break;
    if (progress == TlsSession::Progress::kFailed) return session.failure();
    if (total == kMaxHandshakeBytes) return "it sent more than a handshake has";
    const ssize_t got = recv(kPeerFd, received.data(), kMaxHandshakeBytes - total, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return total == 0 ? "it sent nothing" : "it ended the connection during the handshake";
    total += size_t(got);
    session.Received(std::span(received).first(size_t(got)));
  }
  session.KeepReceived();
  return {};
}

// The refusal that a guest gets from the daemon otherwise.
void Refuse(TlsSession& session, const char* sentence) {
  LocalReply reply{kLocalMagic, 0, 0, 0, ""};
  std::strncpy(reply.text, sentence, sizeof(reply.text) - 1);
  Pipe guest(kPeerFd);
  session.Seal(std::as_bytes(std::span(&reply, 1)));
  session.Close();
  session.TakeOutput(guest.next());
  guest.Flush(kFlushLimitMs);
}

}  // namespace

int RunConnection() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string problem;
  const auto session = TlsSession::Server(FindSecret, &problem);
  if (session != nullptr) problem = ConfineConnection();
  TlsQuestion said{};
  said.word = Word::kFailed;
  if (problem.empty()) problem = ShakeHands(*session);
  if (!problem.empty()) {
    problem.copy(said.text, sizeof(said.text) - 1);
    send(kListenerFd, &said, sizeof said, MSG_NOSIGNAL);
    return 1;
  }
  said.word = Word::kProved;
  TlsAnswer answer{};
  int daemon = -1;
  if (!Ask(said, &answer, &daemon)) return 1;
  if (answer.accepted != 1 || daemon < 0) {
    Refuse(*session, answer.text);
    return 0;
  }
  Relay(*session, daemon).Run();
  return 0;
}

}  // namespace causeway::tls
