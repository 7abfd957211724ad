// SPDX-License-Identifier: Apache-2.0
// `causeway bench --transport`: native, shared memory and transports over sockets in one run, in turns, beside what bare sockets do on
// the same endpoints (bare_socket.h).
#pragma once
#include "tools/bench/run.h"

namespace causeway::bench {

// Measures, prints the table and writes the file of --json. The result is "" or the sentence that says why nothing was measured;
// *complete: whether every figure has a value.
std::string MeasureTransports(const BenchOptions& options, bool* complete);

}  // namespace causeway::bench
