// SPDX-License-Identifier: Apache-2.0
// What the cells of a row's processes say, as figures.
#pragma once
#include <map>
#include <vector>

#include "tools/bench/crew/crew.h"
#include "tools/bench/sharing/loads.h"
#include "tools/bench/sharing/outcome.h"
#include "tools/bench/sharing/rows.h"

namespace causeway::bench::sharing {

// What happened while the processes worked, in milliseconds from their begin; negative: it did not.
struct Timeline {
  double asked_ms = -1, resumed_ms = -1;
  // By user, as the daemon says.
  std::map<int, double> charged_s;
  std::map<int, int64_t> turns;
  int lost = 0;  // processes that failed
};

struct Seen {
  const Row& row;
  Way way;
  const std::vector<LoadPlan>& plans;  // of the crew's children, in their order
  Crew& crew;
  double seconds;
  const Timeline& timeline;
  double request_ms;  // of an inference that is alone; 0: there is none
  const Outcome& alone;
};

// Adds all figures that can be told, whether the row names them or not.
void Tell(const Seen& seen, Outcome* outcome);

}  // namespace causeway::bench::sharing
