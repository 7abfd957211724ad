// SPDX-License-Identifier: Apache-2.0
// The rows that are more than processes which work at the same time. Each starts and ends its own processes and daemons, and may
// throw Failure.
#pragma once
#include "tools/bench/sharing/measurement.h"
#include "tools/bench/sharing/outcome.h"
#include "tools/bench/sharing/rows.h"

namespace causeway::bench::sharing {

// One VM alone: natively, or through two daemons in turns, of which one has sharing off.
Outcome MeasureOnAndOff(Measurement& measurement, const Row& row, Way way);
// One VM's processes fault in six ways and are killed, beside three others that check every byte.
Outcome MeasureFaults(Measurement& measurement, const Row& row, Way way);
// The daemon is killed, its arbiter is stopped, and who has the turn is killed, under three VMs that never stop; natively the last
// alone, which tells what of a wait is the driver's own.
Outcome MeasureDeaths(Measurement& measurement, const Row& row, Way way);
// 64 sessions in 16 VMs, of which eight are busy.
Outcome MeasureSessions(Measurement& measurement, const Row& row);

}  // namespace causeway::bench::sharing
