// SPDX-License-Identifier: Apache-2.0
// What it costs that several processes use the GPU: launch-and-wait of 1, 2, 4 and 8 processes, throughput of processes that
// never stop, fairness of unequal kernels, and copies of one process beside kernels of another.
#include <numeric>
#include <string>

#include "tests/bench/sharing_facts/parts/parts.h"
#include "tests/bench/sharing_facts/parts/work.h"

namespace sharing_facts {
namespace {

void LaunchesOf(Plan& plan, int processes) {
  const std::string row = "launch and wait, " + std::to_string(processes) + " processes";
  Crew crew(15);
  crew.Add(processes, [](Stage& stage, Cell& cell, int) {
    Gpu gpu;
    stage.Ready(cell);
    LaunchAndWait(gpu, stage, cell);
  });
  TellTogether(plan, row, crew, processes);
}

// Kernels a second of all processes together, each of which keeps the queue full; `alone` is the figure of one process.
double SaturatedBy(Plan& plan, int processes, std::uint32_t rounds, double kernel_us, double alone) {
  const std::string row = std::to_string(processes) + " processes that never stop, kernels of " +
                          std::to_string(static_cast<int>(kernel_us)) + " us";
  Crew crew(15);
  crew.Add(processes, [rounds, kernel_us](Stage& stage, Cell& cell, int) {
    Gpu gpu;
    stage.Ready(cell);
    Saturate(gpu, stage, cell, rounds, kernel_us);
  });
  if (!crew.AwaitReady()) {
    plan.report.NotMeasured(row, crew.Complaint());
    return 0;
  }
  crew.Go();
  crew.Sleep(plan.seconds / 4);
  const double seconds = kernel_us >= 10000 ? 2 * plan.seconds : plan.seconds;
  const std::vector<double> counts = CountsOver(crew, 0, processes, seconds);
  crew.Finish();
  const double rate = std::accumulate(counts.begin(), counts.end(), 0.0) / seconds;
  plan.report.Figure(row, "kernels together", rate, "1/s");
  if (alone > 0) plan.report.Figure(row, "of one process alone", rate / alone, "", 3);
  if (processes > 1) plan.report.Figure(row, "Jain's index", Jain(counts), "", 3);
  return rate;
}

void MixedKernels(Plan& plan, std::uint32_t rounds_per_ms) {
  const std::string row = "4 processes, kernels of 20, 200, 2,000 and 20,000 us";
  static constexpr std::array<double, 4> kLengths{20, 200, 2000, 20000};
  Crew crew(20);
  crew.Add(4, [rounds_per_ms](Stage& stage, Cell& cell, int index) {
    Gpu gpu;
    const double length = kLengths[static_cast<std::size_t>(index)];
    stage.Ready(cell);
    Saturate(gpu, stage, cell, static_cast<std::uint32_t>(rounds_per_ms * length / 1000), length);
  });
  if (!crew.AwaitReady()) return plan.report.NotMeasured(row, crew.Complaint());
  crew.Go();
  crew.Sleep(plan.seconds / 2);
  std::vector<double> shares = CountsOver(crew, 0, 4, 3 * plan.seconds);
  crew.Finish();
  for (std::size_t i = 0; i < 4; ++i) {
    shares[i] *= kLengths[i] / 1e6 / (3 * plan.seconds);
    plan.report.Figure(row, "share of the " + std::to_string(static_cast<int>(kLengths[i])), shares[i], "",
                       3);
  }
  plan.report.Figure(row, "Jain's index", Jain(shares), "", 3);
}

// One process that launches and waits once a millisecond beside three that never stop.
void OneAmongBusy(Plan& plan, std::uint32_t rounds, double kernel_us) {
  const std::string row = "1 kernel a millisecond beside 3 that never stop, of " +
                          std::to_string(static_cast<int>(kernel_us)) + " us";
  Crew crew(15);
  crew.Add(4, [rounds, kernel_us](Stage& stage, Cell& cell, int index) {
    Gpu gpu;
    stage.Ready(cell);
    if (index == 0) return LaunchAndWait(gpu, stage, cell, 1000);
    Saturate(gpu, stage, cell, rounds, kernel_us);
  });
  if (!crew.AwaitReady()) return plan.report.NotMeasured(row, crew.Complaint());
  crew.Go();
  const std::vector<double> counts = CountsOver(crew, 0, 1, 2 * plan.seconds);
  crew.Finish();
  TellLatencies(plan.report, row, crew, 0, 1, counts[0] / (2 * plan.seconds));
}

void CopiesBeside(Plan& plan, std::uint32_t rounds, double kernel_us, bool busy) {
  const std::string row = busy ? "copies of 64 MiB beside kernels of another" : "copies of 64 MiB alone";
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  Crew crew(15);
  crew.Add(1, [](Stage& stage, Cell& cell, int) {
    Gpu gpu;
    void* host = nullptr;
    CUdeviceptr device = 0;
    Check(gpu.driver(), gpu.driver().cuMemHostAlloc(&host, kBytes, 0), "cuMemHostAlloc");
    Check(gpu.driver(), gpu.driver().cuMemAlloc(&device, kBytes), "cuMemAlloc");
    stage.Ready(cell);
    while (!stage.Over()) {
      Check(gpu.driver(), gpu.driver().cuMemcpyHtoD(device, host, kBytes), "cuMemcpyHtoD");
      cell.count.fetch_add(1, std::memory_order_relaxed);
    }
  });
  if (busy) {
    crew.Add(1, [rounds, kernel_us](Stage& stage, Cell& cell, int) {
      Gpu gpu;
      stage.Ready(cell);
      Saturate(gpu, stage, cell, rounds, kernel_us);
    });
  }
  if (!crew.AwaitReady()) return plan.report.NotMeasured(row, crew.Complaint());
  crew.Go();
  const std::vector<double> counts = CountsOver(crew, 0, crew.size(), plan.seconds);
  crew.Finish();
  plan.report.Figure(row, "to the GPU", counts[0] * static_cast<double>(kBytes) / plan.seconds / 1e9, "GB/s");
  if (busy) plan.report.Figure(row, "the other's kernels", counts[1] / plan.seconds, "1/s");
}

}  // namespace

void MeasureSwitches(Plan& plan) {
  plan.report.Part("switches", "what a switch between contexts costs");
  for (int processes : {1, 2, 4, 8}) LaunchesOf(plan, processes);
  const std::uint32_t rounds = Calibrate(plan.report, 1000);
  if (rounds == 0) return;
  for (double kernel_us : {200.0, 20000.0}) {
    const auto each = static_cast<std::uint32_t>(rounds * kernel_us / 1000);
    double alone = 0;
    for (int processes : {1, 2, 4}) {
      if (plan.Left() <= 0) return plan.report.NotMeasured("the rest", "the part's time was over");
      const double rate = SaturatedBy(plan, processes, each, kernel_us, alone);
      if (processes == 1) alone = rate;
    }
  }
  MixedKernels(plan, rounds);
  OneAmongBusy(plan, rounds / 5, 200);
  OneAmongBusy(plan, 20 * rounds, 20000);
  CopiesBeside(plan, rounds / 5, 200, false);
  CopiesBeside(plan, rounds / 5, 200, true);
}

}  // namespace sharing_facts
