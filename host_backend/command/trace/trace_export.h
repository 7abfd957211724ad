// SPDX-License-Identifier: Apache-2.0
// From the two flight records of a session (ivshmem_ring/transport/layout.h) to the trace format that
// chrome://tracing and ui.perfetto.dev read. Both records are taken for garbage: whatever they hold, the
// result is JSON.
#pragma once
#include <string>
#include <string_view>

#include "ivshmem_ring/transport/layout.h"

namespace causeway {

struct TraceInput {
  std::string guest_name;  // of the process, as the trace shows it
  std::string worker_name;
  std::string remark;      // how the session ended, or empty
  std::string_view guest;  // FlightImage as bytes; empty: this side keeps its times to itself
  std::string_view host;
  bool one_clock = false;  // both sides run on one kernel: their counters are one
  FlightClock now{};       // the host's
};

std::string ChromeTrace(const TraceInput& input);

}  // namespace causeway
