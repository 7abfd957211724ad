// SPDX-License-Identifier: Apache-2.0
// What every part of causewayd needs, without its main, in a time of the fuzzer's own: the clock stands until nothing is ready, then it
// is the next timer's (the linker's --wrap, CMakeLists.txt).
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "host_backend/daemon/doorbell/doorbell_watch.h"
#include "host_backend/daemon/process/launcher_link.h"
#include "host_backend/daemon/region/idle_watch.h"
#include "host_backend/daemon/remote/remote_server.h"
#include "host_backend/daemon/servers/flight_store.h"
#include "host_backend/daemon/servers/local_server.h"
#include "host_backend/daemon/servers/services.h"
#include "host_backend/daemon/servers/tcp_server.h"
#include "host_backend/daemon/servers/vm_server.h"
#include "host_backend/daemon/status.h"

namespace causeway::fuzz {

// A new folder in memory, or where temporary files are.
std::string MakeFolder();

// `config` has no workers: there are none to be had.
struct DaemonParts {
  explicit DaemonParts(const daemon::Config& of) : config(of) {}

  // Of all servers.
  daemon::StatusReport Report() const;
  std::string Status() const { return StatusJson(services, Report(), ""); }
  // So many rounds of the event loop, or until nothing has been ready for a while.
  void Run(uint32_t rounds) {
    loop.Run([&] { return rounds-- == 0; });
  }

  const daemon::Config config;
  const daemon::WorkerPrograms workers{config.worker, config.socket + ".workers"};
  daemon::EventLoop loop;
  std::unique_ptr<daemon::LauncherLink> launcher;
  daemon::Vault vault;
  daemon::WorkerPool pool{loop, daemon::WorkerProgram{workers, "enforce"}, {0, 0, 0}, 1 << 20, {0, 0}};
  daemon::Scopes scopes{config};
  daemon::Zeroing zeroing{loop};
  daemon::ShareSettings share_settings{config};
  daemon::Counters counters;
  daemon::FlightStore flights;
  daemon::IdleWatch idle_watch;
  daemon::DoorbellWatch doorbell_watch;
  daemon::Services services{loop,           config,  pool,   counters, flights, idle_watch,
                            doorbell_watch, workers, scopes, zeroing,  vault,   share_settings};
  std::unique_ptr<daemon::LocalServer> local;
  std::unique_ptr<daemon::RemoteServer> remote;
  std::unique_ptr<daemon::VmServer> vm;
  std::unique_ptr<daemon::TcpServer> tcp;
};

}  // namespace causeway::fuzz
