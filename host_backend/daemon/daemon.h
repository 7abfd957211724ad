// SPDX-License-Identifier: Apache-2.0
// causewayd: reads nothing but the words and messages it validates, and never touches CUDA itself.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "host_backend/daemon/control/control_server.h"
#include "host_backend/daemon/control/share_requests.h"
#include "host_backend/daemon/control/vm_set.h"
#include "host_backend/daemon/doorbell/doorbell_watch.h"
#include "host_backend/daemon/region/idle_watch.h"
#include "host_backend/daemon/remote/remote_server.h"
#include "host_backend/daemon/servers/flight_store.h"
#include "host_backend/daemon/servers/local_server.h"
#include "host_backend/daemon/servers/services.h"
#include "host_backend/daemon/servers/tcp_server.h"

namespace causeway::daemon {

class Daemon {
 public:
  // `path`: the configuration's file, which a reload reads again.
  // `arguments` are the program's own, for an upgrade.
  Daemon(const Config& config, std::string path, char** arguments);
  ~Daemon();

  // Opens sockets and regions and starts the first workers. Returns "" or one sentence.
  std::string Start();
  // Until SIGTERM or SIGINT; SIGHUP reloads the configuration. Then all workers are gone. False where it had to give up, which the log says.
  bool Run();
  // After Start has failed: where it had begun to take over a daemon's sessions, the process ends here, and they go on waiting
  // for another one.
  void EndWithoutSessions() const;

 private:
  void OnSignal();
  void OnControl(const ControlRequest& request, const LocalPeer& peer, const ControlServer::Answer& answer);
  Result<std::string> Reload();
  Json Drain(const ControlRequest& request);
  void Stop();
  std::string FindLauncher();
  void OnLauncherEnd(const std::string& how);
  void TakeOver();
  void Upgrade(const ControlServer::Answer& answer);
  void Leave(bool becomes_next);
  void LeaveWhenSettled(Clock::time_point begin);
  [[noreturn]] void LeaveNow();
  std::string StartLauncher();
  std::string StatusText(const std::string& scope) const;
  void OnSharesChanged();
  void TakeOverShares();
  std::vector<ShareStatus> Shares() const;
  void FlushLogsSoon();

  const std::string path_;
  char** const arguments_;
  const std::string program_;  // as it was called when it started: an upgrade puts another one there
  Config config_;              // servers and scopes refer to it: a reload assigns, and moves nothing
  const WorkerPrograms workers_;
  const Clock::time_point started_ = Clock::now();
  EventLoop loop_;
  // These outlive every worker.
  std::unique_ptr<WorkerFolders> folders_;
  std::unique_ptr<LauncherLink> launcher_;
  Vault vault_;
  OpenQuestion question_;
  WorkerPool pool_;
  Counters counters_;
  Scopes scopes_;
  Zeroing zeroing_;
  ShareSettings share_settings_;
  uint64_t shares_key_ = 0;  // of the record of what administrators have set; 0: nothing
  FlightStore flights_;
  IdleWatch idle_watch_;
  DoorbellWatch doorbell_watch_;
  Services services_;
  UniqueFd signals_;
  EventLoop::WatchId signal_watch_ = 0;
  EventLoop::TimerId flush_timer_ = 0;
  bool stopping_ = false;
  bool took_over_ = false;     // the launcher and its workers are those of a daemon of before
  bool leaving_ = false;       // for the next daemon
  bool becomes_next_ = false;  // by executing its program
  std::unique_ptr<Aside> trial_;
  bool lost_ = false;  // the launcher, and with it every worker
  // Destroyed in reverse order: servers and their sessions before the pool.
  VmSet vms_;
  ShareRequests share_requests_;
  std::unique_ptr<ControlServer> control_;
  std::unique_ptr<TcpServer> tcp_;
  std::unique_ptr<RemoteServer> remote_;
  std::unique_ptr<LocalServer> local_;
};

}  // namespace causeway::daemon
