// SPDX-License-Identifier: Apache-2.0
// The control socket (host_backend/common/control_socket.h): who may use it is checked by the kernel's word on the
// peer, whatever the socket's mode lets through. One request a connection.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <optional>

#include "host_backend/common/json.h"
#include "host_backend/daemon/control/control_request.h"
#include "host_backend/daemon/loop/event_loop.h"
#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/process/config.h"
#include "host_backend/daemon/scopes/local_peer.h"

namespace causeway::daemon {

class ControlServer {
 public:
  using Answer = std::function<void(const Json&)>;
  // Does what was asked and calls the answer once, now or later.
  using Handler = std::function<void(const ControlRequest&, const LocalPeer&, Answer)>;

  // Clients are served when the loop runs. `config` and `loop` outlive this. Errors are sentences.
  static Result<std::unique_ptr<ControlServer>> Start(EventLoop& loop, const Config& config, Handler handler);
  ~ControlServer();

  // No further connections. Answers that are under way still come.
  void Stop();

 private:
  struct Connection;
  ControlServer(EventLoop& loop, const Config& config, Handler handler);
  void OnAccept();
  void OnPacket(const std::shared_ptr<Connection>& connection);
  void Close(const std::shared_ptr<Connection>& connection);

  EventLoop& loop_;
  const std::string path_;
  const Handler handler_;
  std::optional<gid_t> group_;
  WorkerFd listener_;  // and those that it has not accepted
  EventLoop::WatchId watch_ = 0;
  std::list<std::shared_ptr<Connection>> connections_;
};

}  // namespace causeway::daemon
