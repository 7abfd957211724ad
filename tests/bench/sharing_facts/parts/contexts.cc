// SPDX-License-Identifier: Apache-2.0
// What contexts cost that do nothing: device memory, and time of the one that works.
#include <unistd.h>

#include <algorithm>
#include <string>

#include "tests/bench/sharing_facts/parts/parts.h"
#include "tests/bench/sharing_facts/parts/work.h"

namespace sharing_facts {
namespace {

enum Value { kFree, kCreateNs };

// Launches and waits for a second whenever the word goes up, and then tells how much device memory is free.
void Watch(Stage& stage, Cell& cell, double seconds) {
  Gpu gpu;
  std::uint64_t seen = 0;
  stage.Ready(cell);
  while (!stage.Over()) {
    if (stage.word == seen) {
      usleep(500);
      continue;
    }
    cell.seen = 0;
    const std::uint64_t begin = NowNs();
    while (NowNs() - begin < static_cast<std::uint64_t>(seconds * 1e9)) {
      const std::uint64_t one = NowNs();
      Check(gpu.driver(), gpu.LaunchCount(), "cuLaunchKernel");
      Check(gpu.driver(), gpu.driver().cuCtxSynchronize(), "cuCtxSynchronize");
      cell.Sample(NowNs() - one);
    }
    std::size_t free = 0, total = 0;
    Check(gpu.driver(), gpu.driver().cuMemGetInfo(&free, &total), "cuMemGetInfo");
    cell.values[kFree] = free;
    ++seen;
    cell.count = seen;
  }
}

void Idle(Stage& stage, Cell& cell) {
  const std::uint64_t begin = NowNs();
  Gpu gpu;
  cell.values[kCreateNs] = NowNs() - begin;
  stage.Ready(cell);
  while (!stage.Over()) usleep(20'000);
}

}  // namespace

void MeasureContexts(Plan& plan) {
  plan.report.Part("contexts", "what contexts cost that have no work");
  Crew crew(plan.Left());
  crew.Add(1, [&plan](Stage& stage, Cell& cell, int) { Watch(stage, cell, plan.seconds); });
  crew.Go();
  double free_before = 0;
  for (int idle : {0, 1, 8, 32, 63}) {
    if (idle > plan.most_contexts) break;
    const int before = crew.size() - 1;
    const std::string row = "launch and wait beside " + std::to_string(idle) + " idle contexts";
    crew.Add(idle - before, [](Stage& stage, Cell& cell, int) { Idle(stage, cell); });
    if (!crew.AwaitReady()) return plan.report.NotMeasured(row, crew.Complaint());
    ++crew.stage().word;
    while (crew.cell(0).count < crew.stage().word && crew.cell(0).state == State::kReady && plan.Left() > 0)
      usleep(1000);
    if (crew.cell(0).count < crew.stage().word) return plan.report.NotMeasured(row, crew.Complaint());
    std::vector<std::uint32_t> samples = crew.Samples(0, 1);
    plan.report.Figure(row, "p50", Percentile(samples, 0.5) / 1000, "us", 2);
    plan.report.Figure(row, "p99", Percentile(samples, 0.99) / 1000, "us", 2);
    const double free = static_cast<double>(crew.cell(0).values[kFree]);
    if (idle == 0) free_before = free;
    if (idle > 0) {
      plan.report.Figure(row, "device memory of each", (free_before - free) / idle / (1 << 20), "MiB");
      std::vector<std::uint32_t> starts;
      for (int i = before + 1; i <= idle; ++i)
        starts.push_back(static_cast<std::uint32_t>(crew.cell(i).values[kCreateNs] / 1000));
      plan.report.Figure(row, "start of a context, p50", Percentile(starts, 0.5) / 1000, "ms");
    }
  }
  crew.Finish();
}

}  // namespace sharing_facts
