// SPDX-License-Identifier: Apache-2.0
// What processes gain that submit in turns, so that only one context has work at any time: the ground of Causeway's gate.
#include <unistd.h>

#include <numeric>
#include <string>

#include "tests/bench/sharing_facts/parts/parts.h"
#include "tests/bench/sharing_facts/parts/work.h"

namespace sharing_facts {
namespace {

// Two processes launch and wait in strict alternation: each call finds the GPU with the other's context.
void Alternate(Plan& plan) {
  const std::string row = "2 processes in strict alternation, launch and wait";
  Crew crew(15);
  crew.Add(2, [](Stage& stage, Cell& cell, int index) {
    Gpu gpu;
    stage.Ready(cell);
    while (!stage.Over()) {
      if (stage.turn.load(std::memory_order_acquire) % 2 != static_cast<std::uint32_t>(index)) continue;
      const std::uint64_t begin = NowNs();
      Check(gpu.driver(), gpu.LaunchCount(), "cuLaunchKernel");
      Check(gpu.driver(), gpu.driver().cuCtxSynchronize(), "cuCtxSynchronize");
      cell.Sample(NowNs() - begin);
      cell.count.fetch_add(1, std::memory_order_relaxed);
      stage.turn.fetch_add(1, std::memory_order_release);
    }
  });
  TellTogether(plan, row, crew, 2);
}

// Processes that launch and wait, one of them at a time for `turn_us`; who waits for its turn spins on a word of memory.
void Turns(Plan& plan, int processes, int turn_us) {
  const std::string row = std::to_string(processes) + " processes in turns of " + std::to_string(turn_us) +
                          " us, launch and wait";
  Crew crew(15);
  crew.Add(processes, [processes, turn_us](Stage& stage, Cell& cell, int index) {
    Gpu gpu;
    stage.Ready(cell);
    bool first_of_turn = false;
    while (!stage.Over()) {
      const std::uint64_t asked = NowNs();
      while (stage.turn.load(std::memory_order_acquire) % static_cast<std::uint32_t>(processes) !=
                 static_cast<std::uint32_t>(index) &&
             !stage.Over()) {
        first_of_turn = true;
      }
      if (first_of_turn) stage.word = NowNs();  // when the turn began
      const std::uint64_t begin = NowNs();
      Check(gpu.driver(), gpu.LaunchCount(), "cuLaunchKernel");
      Check(gpu.driver(), gpu.driver().cuCtxSynchronize(), "cuCtxSynchronize");
      const std::uint64_t end = NowNs();
      cell.Sample(end - asked);
      if (first_of_turn) cell.values[0] += end - begin, ++cell.values[1];
      first_of_turn = false;
      cell.count.fetch_add(1, std::memory_order_relaxed);
      if (end - stage.word > static_cast<std::uint64_t>(turn_us) * 1000)
        stage.turn.fetch_add(1, std::memory_order_release);
    }
  });
  if (TellTogether(plan, row, crew, processes).empty()) return;
  double first_ns = 0, turns = 0;
  for (int i = 0; i < processes; ++i) {
    first_ns += static_cast<double>(crew.cell(i).values[0]);
    turns += static_cast<double>(crew.cell(i).values[1]);
  }
  if (turns > 0) plan.report.Figure(row, "first call of a turn, mean", first_ns / turns / 1000, "us", 2);
}

}  // namespace

void MeasureTurns(Plan& plan) {
  plan.report.Part("turns", "what it brings that one process at a time submits");
  Alternate(plan);
  for (int turn_us : {500, 1000, 2000, 4000, 8000}) {
    if (plan.Left() <= 0) return plan.report.NotMeasured("the rest", "the part's time was over");
    Turns(plan, 4, turn_us);
  }
  Turns(plan, 8, 2000);
}

}  // namespace sharing_facts
