// SPDX-License-Identifier: Apache-2.0
// The ways in over TCP, in plain text and encrypted: the same messages, no shared memory.
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "guest_lib/connection/region_connection.h"
#include "guest_lib/tls/guest_tls.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/tcp/tcp_transport.h"
#include "ivshmem_ring/tls/key_file.h"

namespace causeway::guest {
namespace {

constexpr int kDialSeconds = 10;       // for the connection, and for the handshake's next message
constexpr time_t kAnswerSeconds = 90;  // a worker may have to start first

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

// "host:port" or "[address]:port".
bool Split(const std::string& address, std::string* host, std::string* port) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return false;
  *host = address.substr(0, colon);
  *port = address.substr(colon + 1);
  if (host->size() > 2 && host->front() == '[' && host->back() == ']')
    *host = host->substr(1, host->size() - 2);
  return !host->empty() && !port->empty();
}

// Bounds each wait of the socket, that for its connection among them. 0: none is bounded.
void LimitWaits(int fd, time_t seconds) {
  const timeval limit{seconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// As connect(), also where a signal's handler runs meanwhile: the connection is then made nevertheless.
bool ConnectTo(int fd, const addrinfo& to) {
  if (connect(fd, to.ai_addr, to.ai_addrlen) == 0) return true;
  if (errno != EINTR) return false;
  pollfd made{fd, POLLOUT, 0};
  int error = ETIMEDOUT, ready = 0;
  socklen_t bytes = sizeof error;
  const uint64_t end_us = NowUs() + kDialSeconds * 1'000'000ull;
  do {
    const uint64_t now_us = NowUs();
    ready = poll(&made, 1, now_us < end_us ? static_cast<int>((end_us - now_us) / 1000) : 0);
  } while (ready < 0 && errno == EINTR && NowUs() < end_us);
  if (ready > 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
  errno = error;
  return error == 0;
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
    if (fd >= 0) LimitWaits(fd, kDialSeconds);
    if (fd >= 0 && !ConnectTo(fd, *at)) {
      const int why = errno == EINPROGRESS ? ETIMEDOUT : errno;
      *error = "cannot reach causewayd at " + host + ":" + port + ": " + strerror(why);
      close(fd);
      fd = -1;
    }
  }
  freeaddrinfo(found);
  return fd;
}

// libcauseway-tls.so.1 lies beside the library that this code is in. It stays loaded.
CausewayTlsConnect TlsLibrary(std::string* error) {
  Dl_info self{};
  std::string path = kTlsLibrary;
  if (dladdr(reinterpret_cast<void*>(&TlsLibrary), &self) != 0 && self.dli_fname != nullptr) {
    const std::string name = self.dli_fname;
    if (const size_t slash = name.rfind('/'); slash != std::string::npos)
      path = name.substr(0, slash + 1) + kTlsLibrary;
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(kTlsLibrary, RTLD_NOW | RTLD_LOCAL);
  void* function = library != nullptr ? dlsym(library, kTlsConnectName) : nullptr;
  if (function == nullptr) {
    *error =
        path +
        " is needed for tls:// and cannot be loaded: it belongs beside libcuda.so.1, and to the same build";
    return nullptr;
  }
  return reinterpret_cast<CausewayTlsConnect>(function);
}

// Null: *error says why.
std::unique_ptr<StreamLayer> Encrypt(int fd, std::string* error) {
  const CausewayTlsConnect tls_connect = TlsLibrary(error);
  if (tls_connect == nullptr) return nullptr;
  const char* chosen = getenv("CAUSEWAY_KEY");
  char text[1024] = "";
  std::unique_ptr<StreamLayer> layer(
      tls_connect(fd, chosen != nullptr && *chosen != '\0' ? chosen : kGuestKeyFile, text, sizeof text));
  if (layer == nullptr) *error = text;
  return layer;
}

// Sends the opening message and waits for the answer to it.
bool Exchange(int fd, StreamLayer* layer, const OpenBlock& open, LocalReply* reply) {
  // The socket's own limit begins anew where a signal interrupts the wait.
  const uint64_t end_us = NowUs() + kAnswerSeconds * 1'000'000ull;
  const auto interrupted = [&](ssize_t got) { return got < 0 && errno == EINTR && NowUs() < end_us; };
  std::span<std::byte> rest = std::as_writable_bytes(std::span(reply, 1));
  if (layer == nullptr) {
    if (!SendAll(fd, &open, sizeof open)) return false;
    while (!rest.empty()) {
      const ssize_t got = recv(fd, rest.data(), rest.size(), 0);
      if (interrupted(got)) continue;
      if (got <= 0) return false;
      rest = rest.subspan(static_cast<size_t>(got));
    }
    return true;
  }
  std::vector<std::byte> wire;
  if (!layer->Seal(std::as_bytes(std::span(&open, 1)))) return false;
  layer->TakeOutput(wire);
  if (!SendAll(fd, wire.data(), wire.size())) return false;
  wire.resize(16u << 10);
  while (!rest.empty()) {
    const ptrdiff_t opened = layer->Open(rest);
    if (opened < 0) return false;
    rest = rest.subspan(static_cast<size_t>(opened));
    if (rest.empty() || opened > 0) continue;
    const ssize_t got = recv(fd, wire.data(), wire.size(), 0);
    if (interrupted(got)) continue;
    if (got <= 0) return false;
    layer->Received(std::span(wire).first(static_cast<size_t>(got)));
  }
  layer->KeepReceived();
  return true;
}

std::unique_ptr<Connection> Connect(const std::string& address, bool encrypted, SessionKind kind,
                                    std::string* error) {
  std::string host, port;
  if (!Split(address, &host, &port)) {
    *error = "'" + address + "' is no host:port";
    return nullptr;
  }
  const int fd = Dial(host, port, error);
  if (fd < 0) return nullptr;
  std::unique_ptr<StreamLayer> layer;
  if (encrypted && (layer = Encrypt(fd, error)) == nullptr) {
    close(fd);
    return nullptr;
  }
  LimitWaits(fd, kAnswerSeconds);
  auto open = std::make_unique<OpenBlock>();
  FillOpenBlockFields(open.get(), kind, 0);
  LocalReply reply{};
  if (!Exchange(fd, layer.get(), *open, &reply) || reply.magic != kLocalMagic) {
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
  LimitWaits(fd, 0);
  return std::make_unique<TcpLink>(fd, std::move(layer));
}

}  // namespace

std::unique_ptr<Connection> ConnectTcp(const std::string& address, SessionKind kind, std::string* error) {
  return Connect(address, false, kind, error);
}

std::unique_ptr<Connection> ConnectTls(const std::string& address, SessionKind kind, std::string* error) {
  return Connect(address, true, kind, error);
}

}  // namespace causeway::guest
