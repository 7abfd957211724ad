// SPDX-License-Identifier: Apache-2.0
// The `causeway` command: its subcommands and the daemon that some of them start for themselves. Run
// functions write to standard output and return the command's exit status. A text as a result is empty, or
// one sentence that says what failed. One thread uses all this.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "host_backend/command/ask/ask_daemon.h"
#include "host_backend/common/result.h"

namespace causeway::command {

// Prints the sentence on standard error. The result is the exit status of what has failed.
inline int Failed(const std::string& sentence) {
  std::fprintf(stderr, "causeway: %s\n", sentence.c_str());
  return 1;
}

struct StatusOptions {
  std::string socket;
  bool json = false;
};
int RunStatus(const StatusOptions& options);

struct TraceOptions {
  std::string socket;
  std::string out;       // empty: standard output
  uint64_t session = 0;  // its number, or kTraceLast
  bool list = false;
  bool round_trips = false;  // counts them instead
  std::string step;          // the call that ends a step; empty: as round_trips.h says
};
int RunTrace(const TraceOptions& options);

struct PrivateDaemonOptions {
  std::string driver;         // empty: the daemon's default
  std::string guest_library;  // folder of libcuda.so.1; empty: beside the command
  std::string log_file;       // empty: in the temporary folder, gone afterwards
  uint64_t region_mib = 4096;
  uint32_t spare_workers = 1;
  bool spares_follow_demand =
      true;                   // false: there are never more, so that none starts or ends beside a measurement
  uint32_t max_sessions = 0;  // 0: the daemon's default
  bool tcp = false;
  bool tls = false;
  bool for_all_users = false;  // every local user may use it; it keeps what outlives it in its folder
  std::string configuration;   // lines that are added: keys at the top, and tables behind them
};

struct RunOptions {
  PrivateDaemonOptions daemon;
  std::string trace_file;  // empty: no trace
  std::vector<std::string> command;
};
int RunCommand(const RunOptions& options);

// A causewayd of the command's own, in a temporary folder; both are gone when this object is destroyed.
class PrivateDaemon {
 public:
  // Returns when the daemon serves. The caller owns the object.
  static Result<PrivateDaemon*> Start(const PrivateDaemonOptions& options);
  ~PrivateDaemon();
  PrivateDaemon(const PrivateDaemon&) = delete;
  PrivateDaemon& operator=(const PrivateDaemon&) = delete;

  const std::string& socket() const { return socket_; }
  pid_t pid() const { return pid_; }
  // What CAUSEWAY must be for the programs that use it.
  const std::string& address() const { return address_; }
  const std::string& guest_library_folder() const { return guest_library_; }
  // Waits, at most `limit_ms`, until `count` spare workers are ready.
  std::string WaitForSpares(uint32_t count, int limit_ms) const;
  // Kills it at once, and starts another one in its place, which takes over its sessions. "" or what failed.
  std::string KillAndStart();

 private:
  PrivateDaemon() = default;
  std::string Launch(const PrivateDaemonOptions& options);
  std::string MakeFolder(bool for_all_users);
  std::string WriteConfiguration(const PrivateDaemonOptions& options) const;
  std::string StartProgram();
  std::string WaitUntilServing();
  // The TLS process in front of the daemon, with a key of its own, which CAUSEWAY_KEY of this process then names.
  std::string LaunchTls();
  bool Ended() const;
  std::string LastLogLine() const;

  std::string folder_;
  std::string socket_;
  std::string log_;
  std::string address_;
  std::string guest_library_;
  bool tcp_ = false;
  mutable pid_t pid_ = -1;
  pid_t tls_pid_ = -1;
};

// The folder of this program, and that of the guest library: `chosen`, or beside this program.
std::string ProgramFolder();
Result<std::string> FindGuestLibrary(const std::string& chosen);

// FetchTrace returns the trace of a session (its number, or kTraceLast) as JSON; WriteTrace writes a file.
Result<std::string> FetchTrace(const std::string& socket, uint64_t session);
std::string WriteTrace(const std::string& trace, const std::string& file_name);
// Writes the traces of all sessions that the daemon at `socket` has served: the first to the file, others to
// NAME.2.json and so on. A program that uses NVML has a session for that.
std::string WriteTraces(const std::string& socket, const std::string& file_name);

// Changes this process's environment so that programs which it starts use Causeway: CAUSEWAY becomes
// `address` unless that is empty, and `folder`, the guest library's, comes first in LD_LIBRARY_PATH.
void UseGuestLibrary(const std::string& folder, const std::string& address);

}  // namespace causeway::command
