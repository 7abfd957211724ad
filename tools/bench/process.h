// SPDX-License-Identifier: Apache-2.0
// The benchmark's probe as a process: started on either library, asked, and never waited for without a limit.
#pragma once
#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host_backend/common/result.h"
#include "host_backend/common/unique_fd.h"

namespace causeway::bench {

enum Side { kNative, kGuest, kSides };
inline constexpr const char* kSideNames[kSides] = {"native", "causeway"};
inline constexpr int kReadyLimitMs = 90'000;  // until a probe, or a daemon's spares, are ready

struct ProbePlan {
  std::string program;
  std::string library;
  Side side = kNative;
  std::string address;  // of CAUSEWAY for the guest's side; empty: as it is set
  bool quick = false;
  bool startup = false;  // ends once it is ready
};

class ProbeProcess {
 public:
  // Started, not yet ready.
  static Result<std::unique_ptr<ProbeProcess>> Start(const ProbePlan& plan);
  ~ProbeProcess();
  ProbeProcess(const ProbeProcess&) = delete;
  ProbeProcess& operator=(const ProbeProcess&) = delete;

  // The milliseconds from before the process was made to its first word.
  Result<double> AwaitReady(int limit_ms);
  // "VERSION DEVICE", of a probe that is ready.
  const std::string& about() const { return about_; }
  pid_t pid() const { return pid_; }

  void Tell(const std::string& line);
  // It ends by itself, and is waited for when it is destroyed: of many, all at once.
  void AskToEnd() { input_.reset(); }
  // Asks for a figure; the answer comes with Finish, or the sentence that says why not. After an error the
  // process is not to be used any more.
  void Begin(const std::string& id) { Tell("measure " + id); }
  Result<double> Finish(int limit_ms);
  Result<double> Measure(const std::string& id, int limit_ms);

 private:
  ProbeProcess() = default;
  // A line of its output, or why there is none.
  Result<std::string> ReadLine(int limit_ms);

  std::string name_;
  pid_t pid_ = -1;
  double started_ms_ = 0;
  UniqueFd input_;
  UniqueFd output_;
  std::string pending_;
  std::string about_;
};

// The worker of each session of that daemon, by the pid of the guest process; empty where it does not answer.
std::map<pid_t, pid_t> WorkersOf(const std::string& socket);
// Processor time of another process in ms, and its resident memory in MiB; 0 where it is gone.
double ProcessCpuMs(pid_t pid);
double ResidentMib(pid_t pid);
double NowMs();

// What these processes and all that descend from them use of the processors from its making on. Of what is started later all counts; of what
// has ended nothing does.
class FamilyCpu {
 public:
  explicit FamilyCpu(std::vector<pid_t> roots);
  double UsedMs() const;

 private:
  std::vector<pid_t> roots_;
  std::map<pid_t, double> before_ms_;
};

// Chooses two of this process's processors: the pair with that number, of `all` pairs that share no core. A process that is measured later
// can be given the same pair. The list is empty where there are fewer than three processors for each pair.
std::vector<int> ProcessorPair(int number, int all);
// Binds every thread that the process has now; those that it makes later inherit it. False: one of them could not be bound.
bool BindProcess(pid_t pid, const std::vector<int>& processors);

}  // namespace causeway::bench
