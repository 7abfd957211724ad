// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/hosts/dial.h"

#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "ivshmem_ring/release/build_stamp.h"
#include "ivshmem_ring/tls/guest_tls.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway {
namespace {

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

// As connect(), also where a signal's handler runs meanwhile: the connection is then made nevertheless.
bool ConnectTo(int fd, const addrinfo& to, int limit_s) {
  if (connect(fd, to.ai_addr, to.ai_addrlen) == 0) return true;
  if (errno != EINTR) return false;
  pollfd made{fd, POLLOUT, 0};
  int error = ETIMEDOUT, ready = 0;
  socklen_t bytes = sizeof error;
  const uint64_t end_us = NowUs() + static_cast<uint64_t>(limit_s) * 1'000'000;
  do {
    const uint64_t now_us = NowUs();
    ready = poll(&made, 1, now_us < end_us ? static_cast<int>((end_us - now_us) / 1000) : 0);
  } while (ready < 0 && errno == EINTR && NowUs() < end_us);
  if (ready > 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
  errno = error;
  return error == 0;
}

int Dial(const HostAddress& address, int limit_s, std::string* error) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(address.host.c_str(), address.port.c_str(), &wanted, &found); code != 0) {
    *error = "cannot resolve " + address.host + ": " + gai_strerror(code);
    return -1;
  }
  int fd = -1;
  for (const addrinfo* at = found; at != nullptr && fd < 0; at = at->ai_next) {
    fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (fd >= 0) LimitWaits(fd, limit_s);
    if (fd >= 0 && !ConnectTo(fd, *at, limit_s)) {
      const int why = errno == EINPROGRESS ? ETIMEDOUT : errno;
      *error = "cannot reach causewayd at " + address.text + ": " + strerror(why);
      close(fd);
      fd = -1;
    }
  }
  freeaddrinfo(found);
  return fd;
}

// libcauseway-tls.so.1 lies beside the library that this code is in, or where the system looks. It stays loaded.
void* TlsLibrary(std::string* path) {
  Dl_info self{};
  *path = kTlsLibrary;
  if (dladdr(reinterpret_cast<void*>(&TlsLibrary), &self) != 0 && self.dli_fname != nullptr) {
    const std::string name = self.dli_fname;
    if (const size_t slash = name.rfind('/'); slash != std::string::npos)
      *path = name.substr(0, slash + 1) + kTlsLibrary;
  }
  void* library = dlopen(path->c_str(), RTLD_NOW | RTLD_LOCAL);
  return library != nullptr ? library : dlopen(kTlsLibrary, RTLD_NOW | RTLD_LOCAL);
}

// Null: *error says why.
std::unique_ptr<StreamLayer> Encrypt(int fd, const std::string& key_file, std::string* error) {
  std::string path;
  void* library = TlsLibrary(&path);
  void* function = library != nullptr ? dlsym(library, kTlsConnectName) : nullptr;
  if (function == nullptr) {
    *error =
        path +
        " is needed for tls:// and cannot be loaded: it belongs beside libcuda.so.1, and to the same build";
    return nullptr;
  }
  char text[1024] = "";
  std::unique_ptr<StreamLayer> layer(
      reinterpret_cast<CausewayTlsConnect>(function)(fd, key_file.c_str(), text, sizeof text));
  if (layer == nullptr) *error = text;
  return layer;
}

}  // namespace

HostConnection::~HostConnection() {
  if (fd >= 0) close(fd);
}

std::string DialHost(const HostAddress& address, const std::string& key_file, int limit_s,
                     HostConnection* connection) {
  std::string error;
  connection->fd = Dial(address, limit_s, &error);
  if (connection->fd >= 0 && address.encrypted) connection->layer = Encrypt(connection->fd, key_file, &error);
  return connection->fd >= 0 && (connection->layer != nullptr || !address.encrypted) ? "" : error;
}

bool ExchangeOpening(HostConnection& connection, const OpenBlock& open, int limit_s, LocalReply* reply) {
  std::vector<std::byte> wire;
  if (connection.layer != nullptr) {
    if (!connection.layer->Seal(std::as_bytes(std::span(&open, 1)))) return false;
    connection.layer->TakeOutput(wire);
  }
  LimitWaits(connection.fd, limit_s);
  const bool sent = connection.layer != nullptr ? SendAll(connection.fd, wire.data(), wire.size())
                                                : SendAll(connection.fd, &open, sizeof open);
  return sent && ReceiveMore(connection, std::as_writable_bytes(std::span(reply, 1)), limit_s) &&
         reply->magic == kLocalMagic;
}

bool ReceiveMore(HostConnection& connection, std::span<std::byte> rest, int limit_s) {
  // The socket's own limit begins anew where a signal interrupts the wait.
  const uint64_t end_us = NowUs() + static_cast<uint64_t>(limit_s) * 1'000'000;
  StreamLayer* const layer = connection.layer.get();
  std::vector<std::byte> wire(layer != nullptr ? 16u << 10 : 0);
  while (!rest.empty()) {
    if (layer != nullptr) {
      const ptrdiff_t opened = layer->Open(rest);
      if (opened < 0) return false;
      rest = rest.subspan(static_cast<size_t>(opened));
      if (rest.empty() || opened > 0) continue;
    }
    const std::span<std::byte> room = layer != nullptr ? std::span(wire) : rest;
    const ssize_t got = recv(connection.fd, room.data(), room.size(), 0);
    if (got < 0 && errno == EINTR && NowUs() < end_us) continue;
    if (got <= 0) return false;
    if (layer != nullptr)
      layer->Received(room.first(static_cast<size_t>(got)));
    else
      rest = rest.subspan(static_cast<size_t>(got));
  }
  if (layer != nullptr) layer->KeepReceived();
  return true;
}

std::string HostOfProcess(const std::string& host) {
  std::string path;
  void* library = TlsLibrary(&path);
  void* function = library != nullptr ? dlsym(library, kTlsKeepHostName) : nullptr;
  if (function == nullptr) return {};
  return reinterpret_cast<CausewayTlsKeepHost>(function)(host.empty() ? nullptr : host.c_str());
}

void LimitWaits(int fd, int seconds) {
  const timeval limit{seconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

void StateOpening(OpenBlock* block, SessionKind kind) {
  memset(block, 0, sizeof *block);
  block->magic = kRegionMagic;
  block->abi_major = kAbiMajor;
  block->abi_minor = kAbiMinor;
  block->pid = static_cast<uint32_t>(getpid());
  block->api_hash = kBuildStamp.api_hash;
  block->kind = kind;
  static_assert(sizeof block->release == sizeof kBuildStamp.release);
  memcpy(block->release, kBuildStamp.release, sizeof block->release);
}

}  // namespace causeway
