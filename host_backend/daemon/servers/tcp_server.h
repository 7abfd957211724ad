// SPDX-License-Identifier: Apache-2.0
// Sessions over TCP: the opening message is checked here, then the connection belongs to a worker.
#pragma once
#include <list>
#include <memory>
#include <string>

#include "host_backend/daemon/servers/services.h"

namespace causeway::daemon {

class TcpServer {
 public:
  static Result<std::unique_ptr<TcpServer>> Start(Services& services);
  ~TcpServer();

  void Stop();
  // Where it listens, with the port that the system chose if the configuration says 0.
  const std::string& address() const { return address_; }
  void AppendStatus(std::vector<SessionStatus>& sessions) const;

 private:
  class Session;
  explicit TcpServer(Services& services);
  std::string Bind();
  void OnAccept();
  void Destroy(Session& session);

  Services& services_;
  UniqueFd listener_;
  EventLoop::WatchId watch_ = 0;
  std::string address_;
  std::list<std::unique_ptr<Session>> sessions_;
};

}  // namespace causeway::daemon
