// SPDX-License-Identifier: Apache-2.0
// What all rows of one run have in common: how long they take, and the kernels, each measured when it is first needed.
#pragma once
#include <map>
#include <string>

#include "host_backend/common/result.h"
#include "tools/bench/sharing/loads.h"
#include "tools/bench/sharing/rows.h"
#include "tools/bench/sharing/ways.h"

namespace causeway::bench::sharing {

// One thread.
class Measurement {
 public:
  // `end_ns`: when all of it is to be over, by NowNs.
  Measurement(Host host, double seconds, uint32_t most, uint32_t most_kills, uint64_t end_ns)
      : host_(std::move(host)), seconds_(seconds), most_(most), most_kills_(most_kills), end_ns_(end_ns) {}

  // "DEVICE, CUDA VERSION of the driver" of the native library. Fails where it has no GPU.
  Result<std::string> Identify() const;

  const Host& host() const { return host_; }
  double SecondsOf(const Row& row) const { return seconds_ * row.lengths; }
  // How many faults, or deaths of each kind, there are at most through Causeway; 0: as many as the row's time allows.
  uint32_t most() const { return most_; }
  // How many processes of the VM that faults are killed; 0 where most() is 0.
  uint32_t most_kills() const { return most_kills_; }
  // For how many seconds such a row goes on: for the row's own time, or, where there is a number, as long as that takes.
  double LimitOf(const Row& row, bool counts) const;
  // What a process with this load needs to know. Measures what is not known yet, on a GPU that nobody else uses now, and
  // throws Failure where that does not go.
  LoadPlan PlanOf(const Load& load, uint64_t seed);
  // Milliseconds of a request of kInference, or of a program's. Likewise.
  double RequestMsOf(const Load& load);

 private:
  const Kernel& KernelOf(double us);

  Host host_;
  double seconds_;
  uint32_t most_, most_kills_;
  uint64_t end_ns_;
  std::map<double, Kernel> kernels_;
  std::map<std::pair<std::string, double>, double> requests_ms_;  // by script and kernel_us
};

}  // namespace causeway::bench::sharing
