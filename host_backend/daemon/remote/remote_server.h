// SPDX-License-Identifier: Apache-2.0
// Sessions of remote guests, which causeway-tls hands over once they have proved a key (common/remote/remote_hand_over.h). The daemon
// reads nothing that such a guest sent before. It runs in the daemon's only thread.
#pragma once
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host_backend/common/remote/remote_hand_over.h"
#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/servers/stream_session.h"

namespace causeway::daemon {

class RemoteServer {
 public:
  // Opens the hand-over socket; an error is one sentence.
  static Result<std::unique_ptr<RemoteServer>> Start(Services& services);
  ~RemoteServer();

  void Stop();
  // What one daemon leaves to the next (../takeover/vault.h), as TcpServer's.
  void TakeOver();
  void KeepListener();
  void StopTaking() { services_.loop.Unwatch(watch_); }
  bool quiet() const { return arrivals_.empty() && sessions_.quiet(); }
  void AppendStatus(std::vector<SessionStatus>& sessions) const { sessions_.AppendStatus(sessions); }

 private:
  // A connection of which causeway-tls has not yet said who it is.
  struct Arrival {
    WorkerFd socket;  // its peer is a stranger where one has taken a process of causeway-tls over
    EventLoop::WatchId watch = 0;
    EventLoop::TimerId timer = 0;
    bool tells_keys = false;  // it has said that one has ended
  };
  explicit RemoteServer(Services& services) : services_(services), sessions_(services) {}
  bool MayHandOver(int socket) const;
  void OnAccept();
  void OnArrival(Arrival& arrival);
  void OnKeyEnded(Arrival& arrival);
  void Admit(WorkerFd socket, RemoteHandOver who, const std::string& key_id);
  // None: the configuration has no such VM.
  std::optional<StreamOrigin> OriginOf(const std::string& vm) const;
  void Drop(Arrival& arrival);

  Services& services_;
  WorkerFd listener_;
  uint64_t listener_key_ = 0;
  EventLoop::WatchId watch_ = 0;
  std::list<Arrival> arrivals_;
  StreamSessions sessions_;
};

}  // namespace causeway::daemon
