// SPDX-License-Identifier: Apache-2.0
// The way in over TCP: the same messages, no shared memory.
#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest_lib/connection/region_connection.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/tcp/tcp_transport.h"

namespace causeway::guest {
namespace {

class TcpLink : public Connection {
 public:
  explicit TcpLink(int fd) : fd_(fd) {
    auto client = std::make_unique<TcpClient>(fd);
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

bool SendAll(int fd, const void* bytes, size_t count) {
  const auto* at = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t sent = send(fd, at, count, MSG_NOSIGNAL);
    if (sent <= 0 && errno != EINTR) return false;
    if (sent > 0) {
      at += sent;
      count -= static_cast<size_t>(sent);
    }
  }
  return true;
}

int Dial(const std::string& host, const std::string& port, std::string* error) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(host.c_str(), port.c_str(), &wanted, &found); code != 0) {
    *error = "cannot resolve " + host + ": " + gai_strerror(code);
    return -1;
  }
  int fd = -1;
  for (const addrinfo* at = found; at != nullptr && fd < 0; at = at->ai_next) {
    fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) != 0) {
      *error = "cannot reach causewayd at " + host + ":" + port + ": " + strerror(errno);
      close(fd);
      fd = -1;
    }
  }
  freeaddrinfo(found);
  return fd;
}

}  // namespace

std::unique_ptr<Connection> ConnectTcp(const std::string& address, SessionKind kind, std::string* error) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    *error = "'" + address + "' is no host:port";
    return nullptr;
  }
  const int fd = Dial(address.substr(0, colon), address.substr(colon + 1), error);
  if (fd < 0) return nullptr;
  const timeval patience{90, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  auto open = std::make_unique<OpenBlock>();
  FillOpenBlockFields(open.get(), kind, 0);
  LocalReply reply{};
  if (!SendAll(fd, open.get(), sizeof *open) ||
      recv(fd, &reply, sizeof reply, MSG_WAITALL) != static_cast<ssize_t>(sizeof reply) ||
      reply.magic != kLocalMagic) {
    *error = "no answer from causewayd at " + address;
    close(fd);
    return nullptr;
  }
  if (reply.accepted != 1) {
    reply.text[sizeof reply.text - 1] = '\0';
    *error = "causewayd at " + address + " refused the session: " + reply.text;
    close(fd);
    return nullptr;
  }
  const timeval none{0, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
  return std::make_unique<TcpLink>(fd);
}

}  // namespace causeway::guest
