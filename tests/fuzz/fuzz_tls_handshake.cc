// SPDX-License-Identifier: Apache-2.0
// The process of a TLS connection, whole but for its confinement (host_backend/tls/connection.h): the handshake with anybody, the
// guest's opening message, the hand-over. The peer is a genuine guest whose bytes are changed, cut, doubled or left out on their way,
// one with the wrong key, or somebody who sends any bytes; the listener and the daemon answer in every way that they may. Whenever the
// process would wait, whoever it waits for says something, or ends (the linker's --wrap, CMakeLists.txt); so no time passes. What
// OpenSSL makes anew for each process of a connection, and finds its ciphers for, is made once here: it was most of an execution.
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host_backend/common/remote/tls_hand_over.h"
#include "host_backend/tls/connection.h"
#include "host_backend/tls/messages.h"
#include "ivshmem_ring/hosts/pool_messages.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/tls/tls_session.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/packet.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" ssize_t __real_recv(int socket, void* bytes, size_t room, int flags);
extern "C" ssize_t __wrap_recv(int socket, void* bytes, size_t room, int flags);
extern "C" ssize_t __real_recvmsg(int socket, msghdr* message, int flags);
extern "C" ssize_t __wrap_recvmsg(int socket, msghdr* message, int flags);
extern "C" int __real_poll(pollfd* all, nfds_t count, int timeout);
extern "C" int __wrap_poll(pollfd* all, nfds_t count, int timeout);

// Of each method one; who frees it has a reference.
extern "C" OSSL_LIB_CTX* __real_OSSL_LIB_CTX_new();
extern "C" OSSL_LIB_CTX* __wrap_OSSL_LIB_CTX_new();
extern "C" OSSL_LIB_CTX* __wrap_OSSL_LIB_CTX_new() {
  static OSSL_LIB_CTX* const only = __real_OSSL_LIB_CTX_new();
  return only;
}
extern "C" void __wrap_OSSL_LIB_CTX_free(OSSL_LIB_CTX*);
extern "C" void __wrap_OSSL_LIB_CTX_free(OSSL_LIB_CTX*) {}
extern "C" SSL_CTX* __real_SSL_CTX_new_ex(OSSL_LIB_CTX*, const char*, const SSL_METHOD*);
extern "C" SSL_CTX* __wrap_SSL_CTX_new_ex(OSSL_LIB_CTX*, const char*, const SSL_METHOD*);
extern "C" SSL_CTX* __wrap_SSL_CTX_new_ex(OSSL_LIB_CTX* library, const char* queries,
                                          const SSL_METHOD* method) {
  static std::map<const SSL_METHOD*, SSL_CTX*> made;
  SSL_CTX*& context = made[method];
  if (context == nullptr) context = __real_SSL_CTX_new_ex(library, queries, method);
  if (context != nullptr) SSL_CTX_up_ref(context);
  return context;
}

namespace causeway::fuzz {
namespace {

using Bytes = std::vector<std::byte>;
using Progress = TlsSession::Progress;

constexpr size_t kMostHandshake = 16u << 10;  // that the process reads of a peer that has proved nothing
constexpr int kMostWaits = 5000;

Key KeyOf(uint8_t fill) {
  Key key;
  key.id = std::string(kKeyIdDigits, 'a');
  key.has_secret = true;
  key.secret.fill(fill);
  return key;
}

void Pair(int type, UniqueFd* own, UniqueFd* other) {
  int ends[2];
  Require(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) == 0);
  own->reset(ends[0]);
  other->reset(ends[1]);
}

class World {
 public:
  explicit World(Input& input) : input_(input) {
    Pair(SOCK_STREAM, &guest_, &peer_);
    Pair(SOCK_SEQPACKET, &listener_, &question_);
    std::string error;
    const uint8_t kind = input.Byte();
    if (kind % 4 != 0) client_ = TlsSession::Client(KeyOf(kind % 8 == 1 ? 2 : 1), &error);
    right_key_ = client_ != nullptr && kind % 8 != 1;
    changes_ = kind >= 64;
    Require(error.empty());
  }

  void Run();
  // The process reads from that descriptor, and would wait.
  void Await(int descriptor);
  void Received(int descriptor, ssize_t bytes) {
    if (descriptor == peer_.get() && bytes > 0 && !proved_) handshake_bytes_ += size_t(bytes);
  }

 private:
  void GuestSpeaks();
  void GuestEnds() { shutdown(guest_.get(), SHUT_WR); }
  Bytes Opening();
  void Change(Bytes* wire);
  void ListenerAnswers();
  void DaemonAnswers();
  void TakeHandOver();

  Input& input_;
  UniqueFd guest_, peer_, listener_, question_, daemon_, of_daemon_;
  std::unique_ptr<TlsSession> client_;
  std::unique_ptr<TlsRecords> records_;
  bool right_key_ = false, changes_ = false, changed_ = false;
  bool gave_secret_ = false, proved_ = false, sent_opening_ = false, answered_ = false;
  int waits_ = 0;
  size_t handshake_bytes_ = 0;
  Bytes pending_, opening_;  // of the guest: to be sent, and what it wants to say first
};

World* world = nullptr;

Bytes World::Opening() {
  const size_t size = input_.Byte() < 200 ? sizeof(OpenBlock) : input_.Word() % (2 * sizeof(OpenBlock));
  opening_.assign(size, std::byte{input_.Byte()});
  Bytes wire;
  Require(records_->Seal(opening_));
  records_->TakeOutput(wire);
  return wire;
}

void World::Change(Bytes* wire) {
  const uint8_t what = input_.Byte();
  if (!changes_ || what < 100 || wire->empty()) return;
  changed_ = true;
  const size_t at = input_.Word() % wire->size();
  const auto bytes = std::as_bytes(input_.Bytes(what % 32));
  switch (what % 5) {
    case 0:
      (*wire)[at] ^= std::byte{uint8_t(1 + input_.Byte())};
      break;
    case 1:
      wire->resize(at);
      break;
    case 2:
      wire->insert(wire->begin() + ptrdiff_t(at), bytes.begin(), bytes.end());
      break;
    case 3:
      std::copy_n(bytes.begin(), std::min(bytes.size(), wire->size() - at), wire->begin() + ptrdiff_t(at));
      break;
    default: {
      const Bytes twice = *wire;
      wire->insert(wire->end(), twice.begin(), twice.end());
    }
  }
}

// Goes on with what the process has sent, or says anything.
void World::GuestSpeaks() {
  static std::byte wire[64u << 10];
  const ssize_t got = __real_recv(guest_.get(), wire, sizeof wire, MSG_DONTWAIT);
  if (!pending_.empty()) {  // the next piece
  } else if (client_ == nullptr) {
    const auto bytes = std::as_bytes(input_.Bytes(1 + input_.Word() % 600));
    pending_.assign(bytes.begin(), bytes.end());
  } else if (records_ == nullptr) {
    client_->Received(std::span(wire, size_t(std::max<ssize_t>(got, 0))));
    const Progress progress = client_->Handshake();
    client_->TakeOutput(pending_);
    if (progress == Progress::kDone) records_ = client_->Established();
    if (progress == Progress::kFailed) client_.reset();
    if (client_ != nullptr) client_->KeepReceived();
    Change(&pending_);
  } else if (!std::exchange(sent_opening_, true)) {
    pending_ = Opening();
    Change(&pending_);
  }
  if (pending_.empty()) return GuestEnds();
  const size_t part = input_.Byte() < 200 ? pending_.size() : 1 + input_.Word() % pending_.size();
  const ssize_t sent = send(guest_.get(), pending_.data(), part, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent <= 0) return GuestEnds();
  pending_.erase(pending_.begin(), pending_.begin() + sent);
}

void World::ListenerAnswers() {
  tls::TlsQuestion question;
  const ssize_t got = __real_recv(listener_.get(), &question, sizeof question, MSG_DONTWAIT);
  Require(got == ssize_t(sizeof question) && !proved_);
  tls::TlsAnswer answer{};
  int descriptor = -1;
  const uint8_t odd = input_.Byte();
  if (question.word == tls::Word::kSecret) {
    Require(!gave_secret_ && IsKeyId({question.id, strnlen(question.id, sizeof question.id)}));
    gave_secret_ = true;
    answer.accepted = odd < 240;
    std::memset(answer.secret, 1, sizeof answer.secret);
  } else {
    // Nobody proves a key that they do not have.
    Require(question.word == tls::Word::kProved && gave_secret_ && right_key_);
    proved_ = true;
    answer.accepted = odd < 230;
    std::memset(answer.text, 'x', odd % 2 == 0 ? 100 : sizeof answer.text);
    if (odd % 16 != 1) {
      Pair(SOCK_STREAM, &daemon_, &of_daemon_);
      descriptor = of_daemon_.get();
    }
  }
  if (odd == 255) return listener_.reset();
  SendPacket(listener_.get(), &answer, odd == 254 ? 7 : sizeof answer,
             {&descriptor, size_t(descriptor >= 0)});
  // The process's is another number for it.
  if (descriptor >= 0) of_daemon_.reset();
}

void World::DaemonAnswers() {
  if (!daemon_) return;
  Bytes opening(sizeof(OpenBlock) + 1);
  const ssize_t got = __real_recv(daemon_.get(), opening.data(), opening.size(), MSG_DONTWAIT);
  const uint8_t odd = input_.Byte();
  if (got > 0 && !changed_) {
    Require(opening_.size() >= sizeof(OpenBlock) ? got == ssize_t(sizeof(OpenBlock))
                                                 : got <= ssize_t(sizeof(OpenBlock)));
    const size_t same = std::min(size_t(got), opening_.size());
    Require(std::equal(opening.begin(), opening.begin() + ptrdiff_t(same), opening_.begin()));
  }
  if (std::exchange(answered_, true) || odd > 250) return daemon_.reset();
  LocalReply reply{kLocalMagic, 1, 0, 0, ""};
  if (odd % 8 == 1) reply.accepted = 0;
  if (odd % 8 == 2) {
    reply.accepted = kAnswersOnly;
    reply.region_bytes = odd < 128 ? odd : input_.Word();
  }
  const Bytes further(odd);
  send(daemon_.get(), &reply, odd > 240 ? 7 : sizeof reply, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (odd % 8 == 2) send(daemon_.get(), further.data(), further.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (odd % 8 != 0 || odd > 240) shutdown(daemon_.get(), SHUT_WR);
}

// What the worker gets opens what the guest seals from now on.
void World::TakeHandOver() {
  if (!daemon_) return;
  char waiting = 0;
  if (__real_recv(daemon_.get(), &waiting, 1, MSG_PEEK | MSG_DONTWAIT) <= 0) return daemon_.reset();
  auto stream = ReceiveTlsStream(daemon_.get());
  daemon_.reset();
  Require(stream.ok());
  // What follows the opening message at once is the session's, too, and is not sealed here.
  if (changed_ || opening_.size() != sizeof(OpenBlock)) return;
  Bytes wire, plain(4);
  const Bytes said = {std::byte{1}, std::byte{2}, std::byte{3}};
  Require(records_->Seal(said));
  records_->TakeOutput(wire);
  stream.value().records->Received(wire);
  Require(stream.value().records->Open(plain) == 3 && std::equal(said.begin(), said.end(), plain.begin()));
}

void World::Await(int descriptor) {
  Require(++waits_ < kMostWaits);
  if (descriptor == peer_.get()) return GuestSpeaks();
  if (descriptor == question_.get()) return ListenerAnswers();
  if (answered_) return TakeHandOver();
  DaemonAnswers();
  if (answered_ && daemon_ && input_.Byte() % 4 == 3) daemon_.reset();
}

void World::Run() {
  world = this;
  const int status = tls::ServeConnection(peer_.get(), question_.get(), [] { return std::string(); });
  world = nullptr;
  Require(status == 0 || status == 1);
  Require(handshake_bytes_ <= kMostHandshake);
  // How it failed is said, unless the listener had ended.
  tls::TlsQuestion said;
  if (status == 0 || proved_ || !listener_) return Require(status == 1 || proved_);
  const ssize_t got = __real_recv(listener_.get(), &said, sizeof said, MSG_DONTWAIT);
  Require(got == ssize_t(sizeof said) && said.word == tls::Word::kFailed);
  Require(said.text[0] != '\0' && std::memchr(said.text, 0, sizeof said.text) != nullptr);
}

bool IsThere(int socket) {
  pollfd ready{socket, POLLIN | POLLRDHUP, 0};
  return __real_poll(&ready, 1, 0) == 1;
}

}  // namespace

extern "C" ssize_t __wrap_recv(int socket, void* bytes, size_t room, int flags) {
  if (world == nullptr) return __real_recv(socket, bytes, room, flags);
  World& waiting = *world;
  while ((flags & MSG_DONTWAIT) == 0 && !IsThere(socket)) waiting.Await(socket);
  const ssize_t got = __real_recv(socket, bytes, room, flags);
  waiting.Received(socket, got);
  return got;
}

extern "C" ssize_t __wrap_recvmsg(int socket, msghdr* message, int flags) {
  while (world != nullptr && (flags & MSG_DONTWAIT) == 0 && !IsThere(socket)) world->Await(socket);
  return __real_recvmsg(socket, message, flags);
}

extern "C" int __wrap_poll(pollfd* all, nfds_t count, int timeout) {
  if (world == nullptr) return __real_poll(all, count, timeout);
  int ready = 0;
  while ((ready = __real_poll(all, count, 0)) == 0) world->Await(all[0].fd);
  return ready;
}

}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::fuzz;
  Input input(data, size);
  World(input).Run();
  return 0;
}
