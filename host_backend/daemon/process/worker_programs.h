// SPDX-License-Identifier: Apache-2.0
// Which workers this host has: that of this daemon's build, and those of other releases, each in a folder that its
// rows' hash names (docs/versions.md). A guest is served by the worker of its own hash. Files are looked for at
// each question, because packages come and go while the daemon runs. Of one thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace causeway::daemon {

// 16 hexadecimal digits, as folders and packages are named.
std::string HashText(uint64_t api_hash);
// What a guest or a file says of its release, where it is one: digits, letters and ".+~-". Otherwise "unknown".
std::string ReleaseText(const std::string& said);

struct InstalledWorker {
  uint64_t api_hash = 0;
  std::string release;  // as the file `release` beside it says, or "unknown"
};

class WorkerPrograms {
 public:
  // `own`: the program of this build; `folder`: of the others', and perhaps of this one.
  WorkerPrograms(std::string own, std::string folder) : own_(std::move(own)), folder_(std::move(folder)) {}

  // The program for guests of those rows; empty: there is none. This build's is always named, be it there or not.
  std::string PathOf(uint64_t api_hash) const;
  // What the launcher knows that program by (launcher::Request::worker_hash): 0 is the one it was started with.
  uint64_t LauncherNameOf(uint64_t api_hash) const;
  // All that can be executed, this build's first.
  std::vector<InstalledWorker> All() const;
  // Why guests of those rows cannot be served, as one sentence with both versions.
  std::string WhyNone(uint64_t api_hash, const std::string& release) const;

 private:
  std::string InFolder(uint64_t api_hash) const;
  std::string own_, folder_;
};

// The program of this build where none is configured: in the folder, or else beside causewayd.
std::string OwnWorker(const std::string& folder, const std::string& beside);

}  // namespace causeway::daemon
