// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/control/control_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "host_backend/common/control_socket.h"
#include "host_backend/daemon/process/unix_listener.h"
#include "host_backend/daemon/region/region_file.h"

namespace causeway::daemon {
namespace {

constexpr std::chrono::seconds kRequestLimit{5};
constexpr size_t kMaxConnections = 16;
constexpr size_t kAnswerPacketBytes = 32u << 10;

// In pieces; a client that does not read them loses the rest, and sees that by the text's end.
void Send(int socket, const Json& answer) {
  const std::string text = JsonText(answer);
  for (size_t at = 0; at < text.size(); at += kAnswerPacketBytes) {
    const size_t bytes = std::min(kAnswerPacketBytes, text.size() - at);
    if (send(socket, text.data() + at, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
  }
}

}  // namespace

// Held by the server until it is closed, and by the answer that it waits for.
struct ControlServer::Connection {
  explicit Connection(EventLoop& l) : loop(l) {}
  ~Connection() {
    loop.Unwatch(watch);
    loop.Cancel(limit);
  }
  EventLoop& loop;
  WorkerFd socket;
  LocalPeer peer;
  EventLoop::WatchId watch = 0;
  EventLoop::TimerId limit = 0;
};

ControlServer::ControlServer(EventLoop& loop, const Config& config, Handler handler)
    : loop_(loop), path_(config.control_socket), handler_(std::move(handler)) {}

Result<std::unique_ptr<ControlServer>> ControlServer::Start(EventLoop& loop, const Config& config,
                                                            Vault& vault, Handler handler) {
  std::unique_ptr<ControlServer> server(new ControlServer(loop, config, std::move(handler)));
  if (!config.control_group.empty()) {
    const auto group = GroupId(config.control_group, "control_group");
    if (!group.ok()) return Error{group.error()};
    server->group_ = group.value();
  }
  server->listener_ = TakeListener(vault, config.control_socket, &server->listener_key_);
  if (!server->listener_) {
    auto listener =
        BindListener({config.control_socket, "control_socket", 0660, config.control_group, "control_group"});
    if (!listener.ok()) return Error{listener.error()};
    server->listener_ = std::move(listener.value());
  }
  server->watch_ = loop.Watch(server->listener_.get(), EPOLLIN, "a new control connection",
                              [self = server.get()](uint32_t) { self->OnAccept(); });
  return server;
}

ControlServer::~ControlServer() {
  Stop();
  while (!connections_.empty()) Close(connections_.front());
}

void ControlServer::Stop() {
  loop_.Unwatch(watch_);
  if (listener_) unlink(path_.c_str());
  listener_.reset();
}

void ControlServer::OnAccept() {
  WorkerFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK), closing_);
  if (!socket) return;
  auto peer = IdentifyPeer(socket.get(), group_);
  if (!peer) return;  // it is gone already
  if (!peer->sees_all)
    return Send(socket.get(), Refused("You may not change what causewayd serves; be root, or a "
                                      "member of the group of its control_group."));
  if (connections_.size() >= kMaxConnections)
    return Send(socket.get(), Refused("causewayd has too many control connections; try again."));
  auto connection = std::make_shared<Connection>(loop_);
  connection->socket = std::move(socket);
  connection->peer = std::move(*peer);
  connection->watch = loop_.Watch(connection->socket.get(), EPOLLIN | EPOLLRDHUP, "a control request",
                                  [this, connection](uint32_t) { OnPacket(connection); });
  connection->limit =
      loop_.After(kRequestLimit, "a control client's time limit", [this, connection] { Close(connection); });
  connections_.push_back(connection);
}

// The handlers of the watch and of the limit hold the connection too.
void ControlServer::Close(const std::shared_ptr<Connection>& connection) {
  const std::shared_ptr<Connection> kept = connection;
  loop_.Unwatch(kept->watch);
  loop_.Cancel(kept->limit);
  connections_.remove(kept);
}

void ControlServer::OnPacket(const std::shared_ptr<Connection>& connection) {
  char packet[kControlRequestBytes + 1];
  std::vector<WorkerFd> unwanted;
  const ssize_t bytes =
      ReceiveFromStranger(connection->socket.get(), packet, sizeof(packet), &unwanted, nullptr, closing_);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const std::shared_ptr<Connection> kept = connection;
  Close(kept);
  if (bytes <= 0) return;
  const auto request = DecodeControlRequest({packet, size_t(bytes)});
  if (!request.ok()) return Send(kept->socket.get(), Refused(request.error()));
  handler_(request.value(), kept->peer, [kept](const Json& answer) { Send(kept->socket.get(), answer); });
}

}  // namespace causeway::daemon
