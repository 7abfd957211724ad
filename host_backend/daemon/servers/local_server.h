// SPDX-License-Identifier: Apache-2.0
// The daemon's UNIX sockets, one for the host and one for its containers: sessions of processes, and status
// (ivshmem_ring/messages/local_protocol.h).
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/process/unix_listener.h"
#include "host_backend/daemon/servers/region_session.h"

namespace causeway::daemon {

class LocalServer {
 public:
  // `status` makes the JSON text of what one scope may see, or with "" of everything. Errors: the folder is
  // missing, permission denied, another daemon holds the socket.
  // `lock` is LockSocket's.
  static Result<std::unique_ptr<LocalServer>> Start(Services& services, UniqueFd lock,
                                                    std::function<std::string(const std::string&)> status);
  // Says that this daemon and no other has that socket, for as long as the descriptor is open.
  static Result<UniqueFd> LockSocket(const std::string& socket);
  // The sessions that a daemon of before has left.
  void TakeOver();
  // No further connections are taken; they wait in the socket. And whether none is left that the next daemon could not go
  // on with, because it has asked for nothing yet or reads an answer.
  void StopTaking();
  bool quiet() const;
  // What the next daemon needs of the sockets themselves.
  void KeepListener();
  ~LocalServer();

  // No further connections; the sessions' processes learn that the daemon stops.
  void Stop();
  void AppendStatus(std::vector<SessionStatus>& sessions) const;

 private:
  struct Connection;
  LocalServer(Services& services, UniqueFd lock, std::function<std::string(const std::string&)> status);

  // A socket where clients connect.
  struct Listener {
    std::string path;
    bool of_containers = false;
    WorkerFd socket;  // and those that it has not accepted
    uint64_t key = 0;
    EventLoop::WatchId watch = 0;
    EventLoop::TimerId pause = 0;  // until it is watched again
  };

  std::string Bind();
  void Listen(Listener& listener);
  std::string AddListener(const ListenerPlan& plan, bool of_containers);
  void CloseListeners();
  void Pause(Listener& listener);
  void OnAccept(Listener& listener);
  bool MakeRoom();
  void Watch(Connection& connection);
  void OnPacket(Connection& connection, uint32_t events);
  void OnRequest(Connection& connection, const void* packet, size_t bytes);
  void OpenSession(Connection& connection);
  void BeginSession(Connection& connection);
  void MakeSession(Connection& connection);
  void AwaitReady(Connection& connection);
  void KeepRecord(Connection& connection);
  bool Resume(Vault::Record& record);
  void Refuse(Connection& connection, const std::string& sentence);
  void SendText(Connection& connection, std::string text);
  void SendStatus(Connection& connection);
  void OnClientGone(Connection& connection);
  void Destroy(Connection& connection);
  void SetLimit(Connection& connection, std::chrono::milliseconds limit);
  void Beat();

  Services& services_;
  const std::function<std::string(const std::string&)> status_;
  UniqueFd lock_;
  std::list<Listener> listeners_;
  EventLoop::TimerId beat_timer_ = 0;
  std::list<std::unique_ptr<Connection>> connections_;
  std::optional<gid_t> admin_group_;
};

}  // namespace causeway::daemon
