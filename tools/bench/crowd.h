// SPDX-License-Identifier: Apache-2.0
// The figures of crowded hosts: processes of one side that share a few processors, with their daemon and workers.
#pragma once
#include <cstdint>
#include <string>

#include "host_backend/command/command.h"
#include "tools/bench/figures.h"
#include "tools/bench/process.h"

namespace causeway::bench {

struct CrowdSample {
  double steps_per_s = 0;  // of all together; 0: nobody has made one
  double cpu_us = 0;       // of all of a side together, for a step; 0: there was no moment to read it
};

// Starts as many probes as the figure says ("crowd_KIND:PROCESSORS:PROCESSES"), bound to that many of this thread's
// processors as is, on the guest's side, a daemon of their own. All work at once for length_ms. The calling thread is bound
// until all have started, and starts no others.
Result<CrowdSample> SampleCrowd(const Figure& figure, ProbePlan plan,
                                const command::PrivateDaemonOptions& daemon, double length_ms);
// Whether this machine has the processors.
bool HasProcessors(const Figure& figure, uint32_t processors);

}  // namespace causeway::bench
