// SPDX-License-Identifier: Apache-2.0
#include "host_backend/tls/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>

#include "host_backend/common/remote/tls_hand_over.h"
#include "host_backend/common/unique_fd.h"
#include "host_backend/tls/confinement.h"
#include "host_backend/tls/messages.h"
#include "ivshmem_ring/hosts/pool_messages.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/tls/tls_session.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::tls {
namespace {

constexpr size_t kMaxHandshakeBytes = 16u << 10;  // of a guest: two messages, of less than 1 KiB together
constexpr int kFlushLimitMs = 10'000;             // for what is left when the session has ended

// A socket that never waits, and what it has not taken yet.
class Pipe {
 public:
  explicit Pipe(int fd) : fd_(fd) {}
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

// One connection, by its two descriptors: the peer's socket and the one to the listener.
class Connection {
 public:
  Connection(int peer, int listener) : peer_(peer), listener_(listener) {}
  int Serve(std::string (*confine)());

 private:
  bool Ask(const TlsQuestion& question, TlsAnswer* answer, int* descriptor) const;
  bool FindSecret(const std::string& id, KeySecret* secret) const;
  void Flush(TlsRecords& records) const;
  bool ReadOpening(TlsRecords& records, std::span<std::byte> block, int daemon) const;
  bool PassAnswer(TlsRecords& records, int daemon) const;
  void Introduce(TlsRecords& records, int daemon) const;
  std::string ShakeHands(TlsSession& session) const;
  void Refuse(TlsRecords& records, const char* sentence) const;

  const int peer_, listener_;
};

// Sends one message and waits for the answer; the listener ends this process where that takes too long.
bool Connection::Ask(const TlsQuestion& question, TlsAnswer* answer, int* descriptor) const {
  if (send(listener_, &question, sizeof question, MSG_NOSIGNAL) != ssize_t(sizeof question)) return false;
  iovec vector{answer, sizeof *answer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(listener_, &message, 0) != ssize_t(sizeof *answer)) return false;
  answer->text[sizeof answer->text - 1] = '\0';
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (descriptor != nullptr && header != nullptr && header->cmsg_type == SCM_RIGHTS)
    std::memcpy(descriptor, CMSG_DATA(header), sizeof *descriptor);
  return true;
}

bool Connection::FindSecret(const std::string& id, KeySecret* secret) const {
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

// Sends what `records` has for the guest, and waits until it is sent.
void Connection::Flush(TlsRecords& records) const {
  Pipe guest(peer_);
  records.TakeOutput(guest.next());
  guest.Flush(kFlushLimitMs);
}

// Waits for `wanted`, and ends when the other has ended. False: the connection is over.
bool AwaitReadable(int wanted, int other) {
  std::array<pollfd, 2> ready = {pollfd{wanted, POLLIN, 0}, pollfd{other, POLLRDHUP, 0}};
  while (true) {
    const int count = poll(ready.data(), ready.size(), -1);
    if (count < 0 && errno != EINTR) return false;
    if (count <= 0) continue;
    return ready[1].revents == 0;
  }
}

// The guest's opening message, which is all that a guest sends before it has an answer; less of it when the daemon, which
// bounds the time, has ended first. False: the connection is over.
bool Connection::ReadOpening(TlsRecords& records, std::span<std::byte> block, int daemon) const {
  std::vector<std::byte> wire(kMaxHandshakeBytes);
  while (true) {
    const ptrdiff_t opened = records.Open(block);
    if (opened < 0) return false;
    block = block.subspan(size_t(opened));
    if (block.empty()) return true;
    if (opened > 0) continue;
    if (!AwaitReadable(peer_, daemon)) return true;
    const ssize_t got = recv(peer_, wire.data(), wire.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    records.Received(std::span(wire).first(size_t(got)));
  }
}

// What follows an answer that begins no session (pool_messages.h): the daemon has sent all of it.
void PassFurtherBytes(TlsRecords& records, int daemon, uint64_t bytes) {
  std::vector<std::byte> further(std::min<uint64_t>(bytes, kMaxPoolAnswerBytes));
  if (recv(daemon, further.data(), further.size(), MSG_WAITALL) == ssize_t(further.size()))
    (void)records.Seal(further);
}

// The daemon's answer to it, which the guest gets. False: there is none, or it is a refusal.
bool Connection::PassAnswer(TlsRecords& records, int daemon) const {
  LocalReply reply{};
  if (!AwaitReadable(daemon, peer_) ||
      recv(daemon, &reply, sizeof reply, MSG_WAITALL) != ssize_t(sizeof reply))
    return false;
  if (!records.Seal(std::as_bytes(std::span(&reply, 1)))) return false;
  if (reply.accepted == kAnswersOnly) PassFurtherBytes(records, daemon, reply.region_bytes);
  if (reply.accepted != 1) records.Close();
  Flush(records);
  return reply.accepted == 1;
}

// The session's opening; then the guest's socket and its keys go to the session's worker, and this process waits for the worker's
// end, to end the connection even if a copy of the socket lives somewhere. The worker gives the connection up when this process ends.
void Connection::Introduce(TlsRecords& records, int daemon) const {
  std::vector<std::byte> block(sizeof(OpenBlock));
  TlsTraffic traffic{};
  if (!ReadOpening(records, block, daemon)) return;
  // The daemon may have refused the VM already, and left its reason.
  (void)!send(daemon, block.data(), block.size(), MSG_NOSIGNAL);
  if (PassAnswer(records, daemon) && records.HandOver(&traffic) && SendTlsStream(daemon, traffic, peer_))
    AwaitReadable(daemon, -1);
  shutdown(peer_, SHUT_RDWR);
}

// Empty: the peer has proved its key. The listener bounds the time.
std::string Connection::ShakeHands(TlsSession& session) const {
  Pipe guest(peer_);
  std::vector<std::byte> received(kMaxHandshakeBytes);
  size_t total = 0;
  while (true) {
    const TlsSession::Progress progress = session.Handshake();
    session.TakeOutput(guest.next());
    guest.Flush(kFlushLimitMs);
    if (progress == TlsSession::Progress::kDone) break;
    if (progress == TlsSession::Progress::kFailed) return session.failure();
    if (total == kMaxHandshakeBytes) return "it sent more than a handshake has";
    const ssize_t got = recv(peer_, received.data(), kMaxHandshakeBytes - total, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return total == 0 ? "it sent nothing" : "it ended the connection during the handshake";
    total += size_t(got);
    session.Received(std::span(received).first(size_t(got)));
  }
  session.KeepReceived();
  return {};
}

// The refusal that a guest gets from the daemon otherwise.
void Connection::Refuse(TlsRecords& records, const char* sentence) const {
  LocalReply reply{kLocalMagic, 0, 0, 0, ""};
  std::strncpy(reply.text, sentence, sizeof(reply.text) - 1);
  records.Seal(std::as_bytes(std::span(&reply, 1)));
  records.Close();
  Flush(records);
}

int Connection::Serve(std::string (*confine)()) {
  std::string problem;
  const auto session = TlsSession::Server(
      [this](const std::string& id, KeySecret* secret) { return FindSecret(id, secret); }, &problem);
  if (session != nullptr) problem = confine();
  TlsQuestion said{};
  said.word = Word::kFailed;
  if (problem.empty()) problem = ShakeHands(*session);
  const auto records = problem.empty() ? session->Established() : nullptr;
  if (problem.empty() && records == nullptr) problem = "OpenSSL gave no keys for the connection";
  if (!problem.empty()) {
    problem.copy(said.text, sizeof(said.text) - 1);
    send(listener_, &said, sizeof said, MSG_NOSIGNAL);
    return 1;
  }
  said.word = Word::kProved;
  TlsAnswer answer{};
  int number = -1;
  const bool answered = Ask(said, &answer, &number);
  const UniqueFd daemon(number);
  if (!answered) return 1;
  if (answer.accepted != 1 || !daemon) {
    Refuse(*records, answer.text);
    return 0;
  }
  Introduce(*records, daemon.get());
  return 0;
}

}  // namespace

int ServeConnection(int peer, int listener, std::string (*confine)()) {
  return Connection(peer, listener).Serve(confine);
}

int RunConnection() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return ServeConnection(kPeerFd, kListenerFd, &ConfineConnection);
}

}  // namespace causeway::tls
