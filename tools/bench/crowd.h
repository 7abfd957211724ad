// SPDX-License-Identifier: Apache-2.0
// The figures of crowded hosts: processes of one side that share a few processors, with their daemon and workers.
#pragma once
#include <cstdint>
#include <string>

#include "host_backend/command/command.h"
#include "tools/bench/figures.h"
#include "tools/bench/process.h"

namespace causeway::bench {

// Starts as many probes as the figure says ("crowd_KIND:PROCESSORS:PROCESSES"), bound to that many of this thread's
// processors as is, on the guest's side, a daemon of their own. All work at once for length_ms. Steps a second of all
// together. The calling thread is bound meanwhile, and starts no others.
Result<double> SampleCrowd(const Figure& figure, ProbePlan plan, const command::PrivateDaemonOptions& daemon,
                           double length_ms);
// Whether this machine has the processors.
bool HasProcessors(const Figure& figure, uint32_t processors);

}  // namespace causeway::bench
