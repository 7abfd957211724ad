// SPDX-License-Identifier: Apache-2.0
// Measuring: who is asked for a figure, in which order, and what happens when that fails.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host_backend/command/command.h"
#include "tools/bench/report.h"

namespace causeway::bench {

struct BenchOptions {
  command::PrivateDaemonOptions daemon;
  std::string native;  // empty: libcuda.so.1, or the daemon's driver where one is named
  std::string json_file;
  std::string plot_file;
  std::string only;  // empty: all figures
  std::vector<std::string>
      transports;  // over sockets, "tcp" or "tls": to compare these (remote/transports.h); empty: what is described here
  uint32_t rounds = 5;
  uint32_t limit_s = 240;
  uint32_t idle_sessions = 100;
  bool list = false;
  bool guest_only = false;  // inside a VM: no native library there, and CAUSEWAY says where the host is
  bool quick = false;       // few repetitions: exercises everything, measures little
};

// What native means: with a driver of one's own (the software GPU) that one.
std::string NativeLibrary(const BenchOptions& options);

class BenchRun {
 public:
  explicit BenchRun(const BenchOptions& options) : options_(options) {}

  // "" or why nothing can be measured.
  std::string Prepare();
  // Rounds of all figures, both sides in turns, until there are enough or time is up.
  void Measure();
  const Report& report() const { return report_; }
  // Whether every figure that was asked for has a value.
  bool complete() const;

 private:
  using Sessions = std::vector<std::unique_ptr<ProbeProcess>>;

  std::string FindLibraries();
  ProbePlan PlanFor(Side side) const;
  void MeasureRow(Row& row, uint32_t round);
  bool Measures(const Row& row, Side side) const;
  bool MayCrowd(const Figure& figure) const;
  Result<double> Sample(const Row& row, Side side);
  Result<double> SampleStartup(Side side);
  Result<double> SamplePair(const Row& row, Side side);
  Result<double> SamplePairFor(double length_ms, const Row& row, Side side);
  Result<double> SampleResident(Side side);
  Result<double> SampleIdle();
  Result<double> SampleCrowded(const Row& row, Side side);
  // As many as the device has room for, up to those wanted.
  Result<Sessions> StartIdleSessions();
  // The side's first or second probe, started where it does not run.
  Result<ProbeProcess*> Probe(Side side, int index);
  void NameWorker(ProbeProcess& probe) const;
  std::string WaitForSpare() const;
  void Progress(uint32_t round, const Row& row) const;

  const BenchOptions& options_;
  Report report_;
  std::unique_ptr<command::PrivateDaemon> daemon_;
  std::string program_;
  std::string address_;
  static constexpr int kManagedProbe = 2;  // a process with managed memory is another thing
  std::unique_ptr<ProbeProcess> probes_[kSides][3];
  std::map<std::string, double> crowd_cpu_us_[kSides];  // by the figure that has not asked for it yet
};

}  // namespace causeway::bench
