// SPDX-License-Identifier: Apache-2.0
// What MPS gives: launch-and-wait of 1 to 8 clients, two servers on one GPU, and a client that is checkpointed.
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "tests/bench/sharing_facts/parts/parts.h"
#include "tests/bench/sharing_facts/parts/work.h"
#include "tools/bench/crew/mps_server.h"

namespace sharing_facts {
namespace {

void Clients(Plan& plan, const std::string& row, const std::vector<Environment>& environments) {
  Crew crew(15);
  for (const Environment& environment : environments) {
    crew.Add(
        1,
        [](Stage& stage, Cell& cell, int) {
          Gpu gpu;
          std::size_t free = 0, total = 0;
          Check(gpu.driver(), gpu.driver().cuMemGetInfo(&free, &total), "cuMemGetInfo");
          cell.values[0] = free;
          stage.Ready(cell);
          LaunchAndWait(gpu, stage, cell);
        },
        environment);
  }
  const std::vector<double> counts = TellTogether(plan, row, crew, crew.size());
  if (counts.empty()) return;
  plan.report.Figure(row, "Jain's index", Jain(counts), "", 3);
  double most = 0, least = 1e18;
  for (int i = 0; i < crew.size(); ++i) {
    most = std::max(most, static_cast<double>(crew.cell(i).values[0]));
    least = std::min(least, static_cast<double>(crew.cell(i).values[0]));
  }
  if (crew.size() > 1)
    plan.report.Figure(row, "device memory of each further", (most - least) / (crew.size() - 1) / (1 << 20),
                       "MiB");
}

// Two groups of two processes each that never stop: whether the groups share the GPU's time.
void Saturated(Plan& plan, const Environment& first, const Environment& second, std::uint32_t rounds) {
  const std::string row = "2 servers, 2 clients each that never stop, kernels of 200 us";
  Crew crew(15);
  auto work = [rounds](Stage& stage, Cell& cell, int) {
    Gpu gpu;
    stage.Ready(cell);
    Saturate(gpu, stage, cell, rounds, 200);
  };
  crew.Add(2, work, first);
  crew.Add(2, work, second);
  if (!crew.AwaitReady()) return plan.report.NotMeasured(row, crew.Complaint());
  crew.Go();
  crew.Sleep(plan.seconds / 4);
  const std::vector<double> counts = CountsOver(crew, 0, 4, plan.seconds);
  crew.Finish();
  const double sum = std::max(1.0, std::accumulate(counts.begin(), counts.end(), 0.0));
  plan.report.Figure(row, "kernels together", sum / plan.seconds, "1/s");
  plan.report.Figure(row, "share of the first server", (counts[0] + counts[1]) / sum, "", 3);
}

// Whether a client of MPS can be checkpointed; one that cannot says with which code.
void Checkpoint(Plan& plan, const Environment& environment) {
  const std::string row = "checkpoint of a client";
  Crew crew(10);
  crew.Add(
      1,
      [](Stage& stage, Cell& cell, int) {
        Gpu gpu;
        stage.Ready(cell);
        while (!stage.Over()) usleep(1000);
      },
      environment);
  if (!crew.AwaitReady()) return plan.report.NotMeasured(row, crew.Complaint());
  const int client = crew.pid(0);
  const int caller = crew.Add(1, [client](Stage& stage, Cell& cell, int) {
    Gpu gpu;
    if (gpu.driver().cuCheckpointProcessLock == nullptr)
      throw Failure("this driver has no cuCheckpointProcessLock");
    CUcheckpointLockArgs lock{};
    lock.timeoutMs = 3000;
    cell.values[0] = gpu.driver().cuCheckpointProcessLock(client, &lock);
    if (cell.values[0] == CUDA_SUCCESS) {
      CUcheckpointUnlockArgs unlock{};
      cell.values[1] = gpu.driver().cuCheckpointProcessUnlock(client, &unlock);
    }
    stage.Ready(cell);
  });
  if (!crew.AwaitReady()) return plan.report.NotMeasured(row, crew.Complaint());
  plan.report.Figure(row, "locking answers", static_cast<double>(crew.cell(caller).values[0]), "code", 0);
}

}  // namespace

void MeasureMps(Plan& plan) {
  plan.report.Part("mps", "what MPS gives, and two of its servers on one GPU");
  try {
    MpsServer first;
    for (int clients : {1, 2, 4, 8}) {
      Clients(plan, std::to_string(clients) + " clients of one server",
              std::vector<Environment>(static_cast<std::size_t>(clients), first.environment()));
    }
    Checkpoint(plan, first.environment());
    MpsServer second;
    Clients(plan, "1 client of each of 2 servers", {first.environment(), second.environment()});
    Clients(plan, "2 clients of each of 2 servers",
            {first.environment(), first.environment(), second.environment(), second.environment()});
    const std::uint32_t rounds = Calibrate(plan.report, 200);
    if (rounds != 0 && plan.Left() > 0) Saturated(plan, first.environment(), second.environment(), rounds);
  } catch (const Failure& failure) {
    plan.report.NotMeasured("MPS", failure.what());
  }
}

}  // namespace sharing_facts
