// SPDX-License-Identifier: Apache-2.0
// A way of sharing, set up: what its processes need, and the daemon or MPS server that they use, which end with it. Settings of the
// whole GPU are neither asked nor changed.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "host_backend/command/command.h"
#include "host_backend/common/json.h"
#include "host_backend/common/result.h"
#include "tools/bench/crew/crew.h"
#include "tools/bench/crew/mps_server.h"
#include "tools/bench/sharing/rows.h"

namespace causeway::bench::sharing {

// The first user's number; no account has it.
inline constexpr int kFirstUser = 64001;

// What stays the same for all rows.
struct Host {
  std::string native;  // the driver's library
  command::PrivateDaemonOptions daemon;
  bool quick = false;
};

// What a row needs of the daemon.
struct DaemonPlan {
  std::map<int, std::string> terms;  // lines of each user's table
  int users = 1;
  uint32_t spares = 0;  // workers for whoever comes first, beside one for each user
  bool takes_turns = true;
  bool programs =
      false;  // they find Causeway's libraries by LD_LIBRARY_PATH, in a folder that every user can read
  bool outlived = false;  // sessions live on when the daemon is killed, until the next one is there
};

// One thread.
class Ground {
 public:
  static Result<std::unique_ptr<Ground>> Make(Way way, const Host& host, const DaemonPlan& plan);

  Place PlaceOf(int user) const;
  // Of kCauseway alone; what the daemon answers, or the sentence of its refusal.
  Result<Json> Ask(const Json& request) const;
  // Waits until every spare worker that it wants is ready; false after so many seconds.
  bool AwaitSpares(double limit_s) const;
  // Its status; empty where it does not answer.
  Json Status() const;
  command::PrivateDaemon& daemon() { return *daemon_; }
  // "uid:NUMBER", as `causeway status` names the user.
  static std::string ScopeOf(int user);

 private:
  Ground(Way way, const Host& host) : way_(way), host_(host) {}

  std::string CopyLibraries();

  Way way_;
  const Host& host_;
  std::string libraries_;  // that folder, where there is one
  std::unique_ptr<command::PrivateDaemon> daemon_;
  std::unique_ptr<MpsServer> mps_;
};

// Seconds that processes may take to start, beside which a row has its own time.
inline constexpr double kStartLimitS = 60;
// How many of the first `count` of the crew have failed or ended by themselves.
int LostOf(Crew& crew, int count);

// Where a child natively works: as this user, or as that one.
Place NativePlace(const Host& host, int user = -1);

// Whether NVIDIA's MPS is installed here.
bool HasMps();

}  // namespace causeway::bench::sharing
