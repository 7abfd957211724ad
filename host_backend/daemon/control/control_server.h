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
#include "host_backend/daemon/takeover/listeners.h"

namespace causeway::daemon {

class ControlServer {
 public:
  using Answer = std::function<void(const Json&)>;
  // Does what was asked and calls the answer once, now or later.
  using Handler = std::function<void(const ControlRequest&, const LocalPeer&, Answer)>;

  // Clients are served when the loop runs. `config` and `loop` outlive this. Errors are sentences.
  static Result<std::unique_ptr<ControlServer>> Start(EventLoop& loop, const Config& config, Vault& vault,
                                                      Handler handler);
  // No further connections are taken; they wait in the socket. And whether none is left that has asked for nothing yet.
  void StopTaking() { loop_.Unwatch(watch_); }
  bool quiet() const { return connections_.empty(); }
  // What the next daemon needs of the socket itself.
  void KeepListener(Vault& vault) { KeepListenerRecord(vault, path_, listener_.get(), &listener_key_); }
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
  uint64_t listener_key_ = 0;
  EventLoop::WatchId watch_ = 0;
  std::list<std::shared_ptr<Connection>> connections_;
  const ClosingAccountRef closing_ = std::make_shared<ClosingAccount>();  // of all of them
};

}  // namespace causeway::daemon
