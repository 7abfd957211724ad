// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/bench/sharing_facts/report.h"
#include "tools/bench/crew/driver.h"
#include "tools/bench/crew/statistics.h"

namespace sharing_facts {

using namespace causeway::bench;  // NOLINT: the processes and kernels of tools/bench/crew

// What all parts get: where figures go, until when they may run, and how long one measurement takes.
struct Plan {
  Report& report;
  double seconds;          // of one measurement, normally 1
  std::uint64_t until_ns;  // by NowNs()
  int most_contexts;       // of part `contexts`
  int most_gib;            // of part `checkpoint`

  double Left() const;  // seconds until until_ns, at least 0
};

// Each answers one question of docs/sharing.md on device 0, and starts and ends its own processes.
void MeasureSwitches(Plan& plan);
void MeasureTurns(Plan& plan);
void MeasureContexts(Plan& plan);
void MeasureSlices(Plan& plan);
void MeasureFaults(Plan& plan);
void MeasureMps(Plan& plan);
void MeasureCheckpoints(Plan& plan);

}  // namespace sharing_facts
