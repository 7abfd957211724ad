// SPDX-License-Identifier: Apache-2.0
// The ways in over TCP, in plain text and encrypted: the same messages, no shared memory.
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "guest_lib/connection/connect_hosts.h"
#include "guest_lib/connection/region_connection.h"
#include "guest_lib/process/log.h"
#include "guest_lib/process/own_thread.h"
#include "ivshmem_ring/hosts/dial.h"
#include "ivshmem_ring/messages/resume_messages.h"
#include "ivshmem_ring/tcp/tcp_transport.h"

namespace causeway::guest {
namespace {

constexpr int kDialSeconds = 10;    // for the connection, and for the handshake's next message
constexpr int kAnswerSeconds = 90;  // a worker may have to start first
constexpr int kAgainSeconds = 5;    // for each step of an attempt to go on with a session

// The host and the session to go on with. What the environment says was read at the opening: other threads may change it.
struct LostSession {
  HostAddress address;
  std::string key_file;
  SessionToken token;
};

// One attempt. It runs in a thread of the transport's.
SocketSource::Got ComeBack(const LostSession& session, uint64_t attempt, uint64_t received,
                           FreshSocket* fresh, std::string* why) {
  HostConnection connection;
  *why = DialHost(session.address, session.key_file, kAgainSeconds, &connection);
  if (!why->empty()) return SocketSource::Got::kNothing;
  auto open = std::make_unique<OpenBlock>();
  StateOpening(open.get(), kResumeKind);
  open->features = kResumesFeature;
  PutRequest({session.token, attempt, received}, open.get());
  LocalReply reply{};
  ResumeGreeting greeting{};
  *why = "no answer from causewayd at " + session.address.text;
  if (!ExchangeOpening(connection, *open, kDialSeconds, &reply)) return SocketSource::Got::kNothing;
  if (reply.accepted != 1) {
    reply.text[sizeof reply.text - 1] = '\0';
    *why = "causewayd at " + session.address.text + " refused it: " + reply.text;
    return reply.reserved == kSessionGone ? SocketSource::Got::kOver : SocketSource::Got::kNothing;
  }
  if (!ReceiveMore(connection, std::as_writable_bytes(std::span(&greeting, 1)), kDialSeconds) ||
      greeting.magic != kResumeMagic)
    return SocketSource::Got::kNothing;
  LimitWaits(connection.fd, 0);
  fresh->fd = std::exchange(connection.fd, -1);
  fresh->layer = std::move(connection.layer);
  fresh->peer_received = greeting.received;
  Explain("the session at " + session.address.text + " goes on over another connection");
  return SocketSource::Got::kSocket;
}

class TcpLink : public Connection {
 public:
  TcpLink(int fd, std::unique_ptr<StreamLayer> layer, ConnectAgain again, Compression compression) : fd_(fd) {
    auto client = std::make_unique<TcpClient>(fd, std::move(layer), std::move(again), compression);
    client_ = client.get();
    transport = std::move(client);
    StayLoaded();  // the threads that receive and that connect again
  }
  bool AllocateSlices(uint64_t, uint64_t*, bool*) override { return false; }
  void FreeSlices(uint64_t, uint64_t) override {}
  std::byte* MapSlices(uint64_t, uint64_t) override { return nullptr; }
  std::byte* PrivateBulk(uint32_t index) override { return client_->BulkBuffer(index); }
  void Abandon() override { close(fd_); }
  void End(Ending) override {
    client_->SayGoodbye();
    shutdown(fd_, SHUT_RDWR);
  }

 private:
  int fd_;
  TcpClient* client_;
};

// NVML copies nothing.
bool AsksForCompression(SessionKind kind) {
  const char* variable = getenv("CAUSEWAY_COMPRESSION");
  return kind == SessionKind::kCuda && (variable == nullptr || strcmp(variable, "off") != 0);
}

}  // namespace

std::unique_ptr<Connection> ConnectHost(const HostAddress& address, SessionKind kind, std::string* error) {
  HostConnection connection;
  const std::string key_file = address.encrypted ? KeyFileFor(address) : "";
  *error = DialHost(address, key_file, kDialSeconds, &connection);
  if (!error->empty()) return nullptr;
  auto open = std::make_unique<OpenBlock>();
  FillOpenBlockFields(open.get(), kind, 0);
  const bool asks = AsksForCompression(kind);
  open->features = kResumesFeature | (asks ? kCompressesFeature : 0);
  LocalReply reply{};
  if (!ExchangeOpening(connection, *open, kAnswerSeconds, &reply)) {
    *error = "no answer from causewayd at " + address.text;
    return nullptr;
  }
  if (reply.accepted != 1) {
    reply.text[sizeof reply.text - 1] = '\0';
    *error = "causewayd at " + address.text + " refused the session: " + reply.text;
    return nullptr;
  }
  LimitWaits(connection.fd, 0);
  ConnectAgain again;
  if (const auto grant = GrantOf(reply)) {
    again.grace_s = grant->grace_s;
    again.dial = [session = LostSession{address, key_file, grant->token}](
                     uint64_t attempt, uint64_t received, FreshSocket* fresh, std::string* why) {
      return ComeBack(session, attempt, received, fresh, why);
    };
  }
  return std::make_unique<TcpLink>(std::exchange(connection.fd, -1), std::move(connection.layer),
                                   std::move(again), Compression{.agreed = asks && GrantsCompression(reply)});
}

}  // namespace causeway::guest
