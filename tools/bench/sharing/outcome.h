// SPDX-License-Identifier: Apache-2.0
// What was measured of one row in one way.
#pragma once
#include <map>
#include <string>

#include "host_backend/common/json.h"

namespace causeway::bench::sharing {

using Figures = std::map<std::string, double>;  // by FigureGoal::id

struct Outcome {
  Figures figures;    // those that were measured
  std::string error;  // why others were not; one sentence
  // Beside figures "turns", a number for each user; "waits_ms", of each kind of death [[part, ms], ...],
  // "turn_waits_ms", of each kind the longest wait for a turn until then, and "late", those rounds that were too long; for pictures
  // "latency_us", [[part, us], ...], "shares", of each user for each 100 ms, and "changed_s".
  Json details;
  double seconds = 0;  // that it took
};

}  // namespace causeway::bench::sharing
