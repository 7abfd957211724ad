// SPDX-License-Identifier: Apache-2.0
// Sessions over TCP, neither encrypted nor authenticated.
#pragma once
#include <sys/types.h>

#include <map>
#include <memory>
#include <string>

#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/servers/services.h"
#include "host_backend/daemon/servers/stream_session.h"

namespace causeway::daemon {

class TcpServer {
 public:
  static Result<std::unique_ptr<TcpServer>> Start(Services& services);
  ~TcpServer();

  void Stop();
  // The sessions and, by KeepListener, the socket that one daemon leaves to the next (../takeover/vault.h). StopTaking: further
  // connections wait in the socket.
  void TakeOver();
  void KeepListener();
  void StopTaking();
  bool quiet() const { return sessions_.quiet(); }
  // Where it listens, with the port that the system chose if the configuration says 0.
  const std::string& address() const { return address_; }
  void AppendStatus(std::vector<SessionStatus>& sessions) const { sessions_.AppendStatus(sessions); }

 private:
  explicit TcpServer(Services& services);
  std::string Bind();
  void Listen();
  void OnAccept();
  bool MayUse(uid_t user);

  StreamOrigin OriginOf(const std::string& peer) const;

  Services& services_;
  WorkerFd listener_;
  uint64_t listener_key_ = 0;
  EventLoop::WatchId watch_ = 0;
  EventLoop::TimerId pause_ = 0;  // until it is watched again
  struct KnownUser {
    Clock::time_point asked;
    bool may;
  };
  std::map<uid_t, KnownUser> known_users_;  // of this host
  std::string address_;
  StreamSessions sessions_;
};

}  // namespace causeway::daemon
