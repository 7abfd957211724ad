// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/servers/tcp_server.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <utility>

#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/scopes/tcp_peer.h"
#include "host_backend/daemon/takeover/listeners.h"

namespace causeway::daemon {
namespace {

// Numbers alone: nobody is asked for names.
socklen_t FillAddress(const TcpConfig& config, sockaddr_storage& storage) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(config.address.c_str(), std::to_string(config.port).c_str(), &hints, &found) != 0) return 0;
  const socklen_t length = found->ai_addrlen;
  std::memcpy(&storage, found->ai_addr, length);
  freeaddrinfo(found);
  return length;
}

std::string AddressText(const std::string& address, uint16_t port) {
  const bool v6 = address.find(':') != std::string::npos;
  return (v6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

// As the configuration says it, with port 0 where the system chooses.
std::string RecordPlace(const TcpConfig& config) {
  return kTcpPlace + AddressText(config.address, config.port) +
         (config.bridge.empty() ? "" : "%" + config.bridge);
}

// From then on the socket gets what comes in at that bridge, and nothing from another interface, whatever address it is sent to.
// Empty, or what is wrong.
std::string HoldToBridge(int socket, const std::string& bridge) {
  const bool plain = bridge.size() < IFNAMSIZ && bridge.find('/') == std::string::npos;
  if (!plain || access(("/sys/class/net/" + bridge + "/bridge").c_str(), F_OK) != 0)
    return "this host has no bridge " + bridge.substr(0, IFNAMSIZ) +
           "; make it first, or correct [tcp] bridge";
  if (setsockopt(socket, SOL_SOCKET, SO_BINDTODEVICE, bridge.c_str(), socklen_t(bridge.size() + 1)) == 0)
    return {};
  return "they cannot be held to the bridge " + bridge + ": " + ErrnoText();
}

}  // namespace

TcpServer::TcpServer(Services& services) : services_(services), sessions_(services) {}

Result<std::unique_ptr<TcpServer>> TcpServer::Start(Services& services) {
  std::unique_ptr<TcpServer> server(new TcpServer(services));
  if (std::string text = server->Bind(); !text.empty()) return Error{text};
  server->Listen();
  return server;
}

void TcpServer::Listen() {
  watch_ = services_.loop.Watch(listener_.get(), EPOLLIN, "a new TCP connection",
                                [this](uint32_t) { OnAccept(); });
}

std::string TcpServer::Bind() {
  const TcpConfig& config = services_.config.tcp;
  const std::string where = AddressText(config.address, config.port);
  sockaddr_storage address{};
  socklen_t length = FillAddress(config, address);
  listener_ = TakeListener(services_.vault, RecordPlace(config), &listener_key_, PlaceKind::kAddress);
  if (!listener_) EndOtherAddresses(services_.vault, RecordPlace(config));
  const int on = 1;
  const bool taken = bool(listener_);
  if (!taken) listener_.reset(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!taken && listener_) setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (!taken && listener_ && !config.bridge.empty()) {
    if (const std::string problem = HoldToBridge(listener_.get(), config.bridge); !problem.empty())
      return "TCP connections at " + where + " cannot be accepted: " + problem + ".";
  }
  if (!taken && (!listener_ || bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
                 listen(listener_.get(), 128) != 0)) {
    return "TCP connections at " + where + " cannot be accepted: " + ErrnoText() + "; correct [tcp] listen.";
  }
  length = sizeof(address);
  getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
  const uint16_t port =
      ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&address)->sin_port
                                         : reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  address_ = AddressText(config.address, port);
  LogInfo("TCP sessions are accepted at " + address_ +
          (config.bridge.empty() ? "" : ", of the bridge " + config.bridge + " alone") +
          ", neither encrypted nor authenticated");
  return {};
}

TcpServer::~TcpServer() {
  Stop();
}

void TcpServer::Stop() {
  StopTaking();
  listener_.reset();
  services_.vault.Drop(listener_key_);
}

void TcpServer::StopTaking() {
  services_.loop.Unwatch(watch_);
  services_.loop.Cancel(pause_);
}

void TcpServer::KeepListener() {
  KeepListenerRecord(services_.vault, RecordPlace(services_.config.tcp), listener_.get(), &listener_key_);
}

void TcpServer::TakeOver() {
  sessions_.TakeOver("tcp", [this](const std::string& peer, std::optional<uid_t>) { return OriginOf(peer); });
}

StreamOrigin TcpServer::OriginOf(const std::string& peer) const {
  return {"tcp", "TCP", services_.scopes.OfPeer(peer), services_.config.tcp.share, std::nullopt, false, false,
          peer,  ""};
}

// Groups may be known to a server of the network alone, and whoever connects again and again must not have it asked each time.
bool TcpServer::MayUse(uid_t user) {
  constexpr std::chrono::seconds kValid{10};
  constexpr size_t kMostKnown = 256;
  const auto now = Clock::now();
  const auto known = known_users_.find(user);
  if (known != known_users_.end() && now - known->second.asked < kValid) return known->second.may;
  if (known == known_users_.end() && known_users_.size() >= kMostKnown) known_users_.clear();
  const bool may = MayUseSocket(user, services_.config);
  known_users_[user] = {now, may};
  return may;
}

void TcpServer::OnAccept() {
  const auto pause = [this] {
    services_.loop.Unwatch(watch_);
    pause_ = services_.loop.After(kClosingPause, "a new TCP connection", [this] { Listen(); });
  };
  if (ClosingBacklog() > kMostClosing) return pause();
  WorkerFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket && IsOutOfDescriptors(errno)) return pause();
  if (!socket) return;
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  char text[NI_MAXHOST] = "";
  if (getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0)
    getnameinfo(reinterpret_cast<sockaddr*>(&address), length, text, sizeof(text), nullptr, 0,
                NI_NUMERICHOST);
  std::string name = text;
  // On this host itself each user is a peer of its own, held to the UNIX socket's permissions.
  std::optional<uid_t> user;
  bool stranger = false;
  if (IsOwnConnection(socket.get())) {
    user = LoopbackPeer(socket.get());
    name += user ? ":uid" + std::to_string(*user) : ":unknown";
    stranger = !user || !MayUse(*user);
  }
  StreamOrigin origin = OriginOf(name);
  origin.user = user;
  origin.stranger = stranger;
  sessions_.Add(std::move(socket), std::move(origin));
}

}  // namespace causeway::daemon
