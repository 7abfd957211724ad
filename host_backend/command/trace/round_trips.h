// SPDX-License-Identifier: Apache-2.0
// `causeway trace --round-trips`: how often the program waited for the host in each of its steps, and in which calls. A call on an RPC
// channel is one round trip; what the submission queue carries costs none.
#pragma once
#include <string>

#include "host_backend/command/trace/trace_export.h"

namespace causeway {

// A text of some lines. `step`: the name of the call that ends a step (one loss value that is read, for example); empty: of the calls that
// waited more than once, the one that did least often, which a repeated step has once. The flight record keeps the last 16 calls of
// each channel, so what is counted is what lies behind the oldest call from which on every channel is complete. Both records are taken
// for garbage, as by ChromeTrace.
std::string RoundTripText(const TraceInput& input, const std::string& step);

}  // namespace causeway
