// SPDX-License-Identifier: Apache-2.0
// The ways in over TCP, in plain text and encrypted: the same messages, no shared memory.
#include <unistd.h>

#include <utility>

#include "guest_lib/connection/connect_hosts.h"
#include "guest_lib/connection/region_connection.h"
#include "ivshmem_ring/hosts/dial.h"
#include "ivshmem_ring/tcp/tcp_transport.h"

namespace causeway::guest {
namespace {

constexpr int kDialSeconds = 10;    // for the connection, and for the handshake's next message
constexpr int kAnswerSeconds = 90;  // a worker may have to start first

class TcpLink : public Connection {
 public:
  TcpLink(int fd, std::unique_ptr<StreamLayer> layer) : fd_(fd) {
    auto client = std::make_unique<TcpClient>(fd, std::move(layer));
    client_ = client.get();
    transport = std::move(client);
  }
  bool AllocateSlices(uint64_t, uint64_t*, bool*) override { return false; }
  void FreeSlices(uint64_t, uint64_t) override {}
  std::byte* MapSlices(uint64_t, uint64_t) override { return nullptr; }
  std::byte* PrivateBulk(uint32_t index) override { return client_->BulkBuffer(index); }
  void Abandon() override { close(fd_); }

 private:
  int fd_;
  TcpClient* client_;
};

}  // namespace

std::unique_ptr<Connection> ConnectHost(const HostAddress& address, SessionKind kind, std::string* error) {
  HostConnection connection;
  *error = DialHost(address, kDialSeconds, &connection);
  if (!error->empty()) return nullptr;
  auto open = std::make_unique<OpenBlock>();
  FillOpenBlockFields(open.get(), kind, 0);
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
  return std::make_unique<TcpLink>(std::exchange(connection.fd, -1), std::move(connection.layer));
}

}  // namespace causeway::guest
