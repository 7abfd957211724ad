// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/sharing_facts/parts/work.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace sharing_facts {

void LaunchAndWait(const Gpu& gpu, Stage& stage, Cell& cell, int pause_us) {
  while (!stage.Over()) {
    const std::uint64_t begin = NowNs();
    Check(gpu.driver(), gpu.LaunchCount(), "cuLaunchKernel");
    Check(gpu.driver(), gpu.driver().cuCtxSynchronize(), "cuCtxSynchronize");
    cell.Sample(NowNs() - begin);
    cell.count.fetch_add(1, std::memory_order_relaxed);
    if (pause_us > 0) usleep(static_cast<useconds_t>(pause_us));
  }
}

void Saturate(const Gpu& gpu, Stage& stage, Cell& cell, std::uint32_t rounds, double kernel_us) {
  const Driver& driver = gpu.driver();
  const int batch = std::clamp(static_cast<int>(2000 / kernel_us), 1, 200);
  std::array<CUevent, 2> ends{};
  for (CUevent& end : ends)
    Check(driver, driver.cuEventCreate(&end, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  for (std::size_t turn = 0; !stage.Over(); ++turn) {
    CUevent end = ends[turn % 2];
    if (turn >= 2) {
      Check(driver, driver.cuEventSynchronize(end), "cuEventSynchronize");
      cell.count.fetch_add(static_cast<std::uint64_t>(batch), std::memory_order_relaxed);
    }
    for (int i = 0; i < batch; ++i) Check(driver, gpu.LaunchWork(rounds), "cuLaunchKernel");
    Check(driver, driver.cuEventRecord(end, nullptr), "cuEventRecord");
  }
  Check(driver, driver.cuCtxSynchronize(), "cuCtxSynchronize");
}

void TellLatencies(Report& report, const std::string& row, const Crew& crew, int first, int count,
                   double calls_per_s) {
  std::vector<std::uint32_t> samples = crew.Samples(first, count);
  report.Figure(row, "p50", Percentile(samples, 0.5) / 1000, "us", 2);
  report.Figure(row, "p99", Percentile(samples, 0.99) / 1000, "us", 2);
  report.Figure(row, "p99.9", Percentile(samples, 0.999) / 1000, "us", 2);
  report.Figure(row, "together", calls_per_s, "1/s", 0);
}

std::vector<double> TellTogether(Plan& plan, const std::string& row, Crew& crew, int count) {
  if (!crew.AwaitReady()) {
    plan.report.NotMeasured(row, crew.Complaint());
    return {};
  }
  crew.Go();
  std::vector<double> counts = CountsOver(crew, 0, count, plan.seconds);
  crew.Finish();
  const double calls = std::accumulate(counts.begin(), counts.end(), 0.0);
  TellLatencies(plan.report, row, crew, 0, count, calls / plan.seconds);
  return counts;
}

std::vector<double> CountsOver(Crew& crew, int first, int count, double seconds) {
  std::vector<double> counts;
  for (int i = first; i < first + count; ++i) counts.push_back(-static_cast<double>(crew.cell(i).count));
  const std::uint64_t begin = NowNs();
  crew.Sleep(seconds);
  const double passed = static_cast<double>(NowNs() - begin) / 1e9;
  for (int i = 0; i < count; ++i) {
    double& one = counts[static_cast<std::size_t>(i)];
    one = (one + static_cast<double>(crew.cell(first + i).count)) * seconds / passed;
  }
  return counts;
}

std::uint32_t Calibrate(Report& report, double microseconds) {
  Crew crew(15);
  crew.Add(1, [microseconds](Stage& stage, Cell& cell, int) {
    Gpu gpu;
    for (int i = 0; i < 20; ++i) Check(gpu.driver(), gpu.LaunchWork(1000), "cuLaunchKernel");  // clocks go up
    Check(gpu.driver(), gpu.driver().cuCtxSynchronize(), "cuCtxSynchronize");
    cell.values[0] = gpu.RoundsFor(microseconds);
    stage.Ready(cell);
  });
  if (!crew.AwaitReady()) {
    report.NotMeasured("calibration", crew.Complaint());
    return 0;
  }
  return static_cast<std::uint32_t>(crew.cell(0).values[0]);
}

}  // namespace sharing_facts
