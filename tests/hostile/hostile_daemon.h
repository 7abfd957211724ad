// SPDX-License-Identifier: Apache-2.0
// A causewayd of a test's own with real workers, and what a privileged observer can say of those. The
// programs are found beside the test (BUILD/hostile_tests/..), so that a packed build runs on a GPU host as
// well. CAUSEWAY_TEST_DRIVER names the driver library; without it the build's software GPU is used. With
// CAUSEWAY_TEST_SOCKET (and CAUSEWAY_TEST_LOG) the cases go to that daemon, which others use at the same
// time, and start none: tests/hostile/beside.py has them as attackers there and does not ask for their
// results.
#pragma once
#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace causeway::test {

// Asks `done` until it says true or `seconds` have passed.
bool WaitFor(const std::function<bool()>& done, int seconds = 30);

// The build's folder, and the driver library that workers are to load.
std::string BuildFolder();
std::string DriverLibrary();
// What is known of the software GPU alone (its modelled failures, its /proc maps) is tested there alone.
bool OnSoftwareGpu();

struct HostileDaemonOptions {
  uint64_t region_mib = 256;                         // of each local session
  bool tcp = false;                                  // at a port of its own, 127.0.0.1
  std::string more{};                                // further lines of the configuration, tables last
  std::map<std::string, std::string> environment{};  // of daemon and workers, beside the test's own
};

// A mapping of a process.
struct Mapping {
  uint64_t begin = 0, end = 0;
  std::string permissions;  // "rw-s"
  uint64_t offset = 0;
  std::string name;
};

// A worker as root sees it; what a guest does must not depend on it.
class WorkerView {
 public:
  WorkerView() = default;
  explicit WorkerView(pid_t pid) : pid_(pid) {}
  pid_t pid() const { return pid_; }
  // Runs, and is no zombie.
  bool Alive() const;
  std::vector<Mapping> Maps() const;
  // The mapping that holds the address; begin == end == 0 where there is none.
  Mapping MapAt(uint64_t address) const;
  // Up to `count` bytes of its memory.
  std::string Read(uint64_t address, size_t count) const;
  size_t Threads() const;

 private:
  pid_t pid_ = 0;
};

// Started by the constructor, which fails the test if it does not serve within 30 s. Ends with the object:
// SIGTERM, and a failure if that takes more than 30 s.
class HostileDaemon {
 public:
  explicit HostileDaemon(const HostileDaemonOptions& options = {});
  ~HostileDaemon();
  HostileDaemon(const HostileDaemon&) = delete;
  HostileDaemon& operator=(const HostileDaemon&) = delete;

  bool Serves() const;
  bool IsOthers() const { return folder_.empty(); }
  // Of a daemon that is not this object's: a number that no process has.
  pid_t pid() const { return pid_; }
  const std::string& folder() const { return folder_; }
  std::string socket() const { return socket_; }
  uint16_t tcp_port() const { return tcp_port_; }
  std::string Log() const;
  // Lines of the log that contain the text.
  size_t CountInLog(const std::string& text) const;
  // What `causeway status` is told, as JSON; empty if the daemon does not answer.
  std::string Status() const;
  uint64_t Counter(const std::string& name) const;
  // Of all sessions that are open now.
  std::vector<pid_t> Workers() const;

 private:
  void Adopt(const char* socket);

  std::string folder_, socket_, log_;
  pid_t pid_ = -1;
  uint16_t tcp_port_ = 0;
};

// How a worker ended, by the daemon's log: "was killed by signal 11 (Segmentation fault)", "ended with exit
// status 3". Waits for that line, up to 30 s; empty if it does not come.
std::string EndOf(const HostileDaemon& daemon, const WorkerView& worker);

}  // namespace causeway::test
