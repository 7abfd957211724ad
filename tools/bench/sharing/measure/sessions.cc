// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "tools/bench/crew/statistics.h"
#include "tools/bench/process.h"
#include "tools/bench/sharing/measure/special.h"

namespace causeway::bench::sharing {
namespace {

constexpr double kSparesLimitS = 30;
constexpr double kSessionKernelUs = 200;
constexpr int kGroup = 4;  // sessions that start together

struct Sizes {
  int sessions, vms, busy;
};
// The test of the benchmark has a machine of its own size.
constexpr Sizes kFull{64, 16, 8}, kQuick{8, 4, 2};

// Processor time of idle sessions, in ms: those processes and their workers.
double IdleMs(Crew& crew, const Sizes& sizes, const std::map<pid_t, pid_t>& workers) {
  double ms = 0;
  for (int i = sizes.busy; i < sizes.sessions; ++i) {
    ms += ProcessCpuMs(crew.pid(i));
    if (const auto worker = workers.find(crew.pid(i)); worker != workers.end())
      ms += ProcessCpuMs(worker->second);
  }
  return ms;
}

}  // namespace

Outcome MeasureSessions(Measurement& measurement, const Row& row) {
  Outcome outcome;
  const Sizes sizes = measurement.host().quick ? kQuick : kFull;
  const LoadPlan full = measurement.PlanOf({.work = Work::kFull, .kernel_us = kSessionKernelUs}, 1);
  DaemonPlan plan;
  plan.users = sizes.vms;
  auto made = Ground::Make(kCauseway, measurement.host(), plan);
  if (!made.ok()) return outcome.error = made.error(), outcome;
  Ground& ground = *made.value();
  const double seconds = measurement.SecondsOf(row);
  Crew crew(2 * kStartLimitS + 2 * seconds);
  const Crew::Work work = [&](Stage& stage, Cell& cell, int index) {
    if (index >= sizes.busy) return Idle(stage, cell);
    Run(stage, cell, full);
  };
  for (int i = 0; i + 1 < sizes.sessions; ++i) {
    crew.Add(1, work, ground.PlaceOf(i % sizes.vms));
    if ((i + 1) % kGroup == 0 && !crew.AwaitReady()) return outcome.error = crew.Complaint(), outcome;
  }
  if (!crew.AwaitReady()) return outcome.error = crew.Complaint(), outcome;
  // It gets a spare of its VM's own.
  if (!ground.AwaitSpares(kSparesLimitS)) return outcome.error = "no spare worker became ready", outcome;
  const double begin = NowMs();
  crew.Add(1, work, ground.PlaceOf((sizes.sessions - 1) % sizes.vms));
  if (!crew.AwaitReady()) return outcome.error = crew.Complaint(), outcome;
  outcome.figures["last_start"] = NowMs() - begin;
  ground.AwaitSpares(kSparesLimitS);  // the next spare's start is no part of what follows
  const auto workers = WorkersOf(ground.daemon().socket());
  crew.Go(seconds);
  const double idle_before = IdleMs(crew, sizes, workers), from = NowMs();
  crew.Sleep(seconds);
  outcome.figures["idle_cpu"] = (IdleMs(crew, sizes, workers) - idle_before) / (NowMs() - from) * 100;
  crew.Sleep(0.05);
  std::vector<double> had;
  double all = 0;
  for (int i = 0; i < sizes.busy; ++i) {
    had.push_back(static_cast<double>(crew.cell(i).count) * full.kernel.us);
    all += had.back();
  }
  outcome.figures["jain"] = Jain(had);
  outcome.figures["gpu"] = all / 1e6 / seconds;
  if (LostOf(crew, crew.size()) > 0) outcome.error = crew.Complaint();
  return outcome;
}

}  // namespace causeway::bench::sharing
