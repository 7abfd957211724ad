// SPDX-License-Identifier: Apache-2.0
// Measuring one row in one way: its processes are started, work at the same time, and are gone when it returns.
#pragma once
#include "tools/bench/sharing/measurement.h"
#include "tools/bench/sharing/outcome.h"
#include "tools/bench/sharing/rows.h"

namespace causeway::bench::sharing {

// `alone` is what kAlone had of the row, or empty. Uses the GPU, and starts and ends its own processes and daemon.
Outcome Measure(Measurement& measurement, const Row& row, Way way, const Outcome& alone);

}  // namespace causeway::bench::sharing
