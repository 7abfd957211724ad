// SPDX-License-Identifier: Apache-2.0
// Whether a process may set the time slice of its own channel groups on this driver, what that costs, and whether the GPU
// obeys: a driver that answers success and changes nothing is what others report of some GPUs.
#include <algorithm>
#include <cstdio>
#include <string>

#include "tests/bench/sharing_facts/channel_group.h"
#include "tests/bench/sharing_facts/parts/parts.h"
#include "tests/bench/sharing_facts/parts/work.h"

namespace sharing_facts {
namespace {

constexpr std::uint32_t kComputeEngine = 1;
constexpr int kSets = 20;

enum Value { kGroups, kComputeGroups, kLibraryUs, kGot, kStatus, kSystem, kSetNs, kGotAfter };

// Sets the slice of all compute groups of this process. The answer that is not success comes back, else the last one.
ControlAnswer SetAll(std::uint64_t microseconds) {
  ControlAnswer answer{0, 0};
  for (const ChannelGroup& group : GroupsOfThisProcess()) {
    if (group.engine != kComputeEngine) continue;
    answer = SetTimeSlice(group, microseconds);
    if (!answer.well()) break;
  }
  return answer;
}

std::string InWords(ControlAnswer answer) {
  if (answer.well()) return "success";
  char text[64];
  if (answer.system != 0) {
    std::snprintf(text, sizeof(text), "errno %d", answer.system);
  } else {
    std::snprintf(text, sizeof(text), "status 0x%x", answer.status);
  }
  return text;
}

// Reads, sets and reads again; false when the layer does not exist here.
bool Probe(Plan& plan) {
  Crew crew(10);
  crew.Add(1, [](Stage& stage, Cell& cell, int) {
    Gpu gpu;
    const std::vector<ChannelGroup> groups = GroupsOfThisProcess();
    cell.values[kGroups] = groups.size();
    for (const ChannelGroup& group : groups) {
      if (group.engine != kComputeEngine) continue;
      ++cell.values[kComputeGroups];
      cell.values[kLibraryUs] = group.library_us;
      std::uint64_t slice = 0;
      ControlAnswer answer = GetTimeSlice(group, &slice);
      cell.values[kGot] = slice;
      for (int i = 0; i < kSets && answer.well(); ++i) {
        const std::uint64_t begin = NowNs();
        answer = SetTimeSlice(group, 3000);
        cell.Sample(NowNs() - begin);
      }
      if (answer.well()) answer = GetTimeSlice(group, &slice);
      cell.values[kGotAfter] = slice;
      cell.values[kStatus] = answer.status;
      cell.values[kSystem] = static_cast<std::uint64_t>(answer.system);
    }
    stage.Ready(cell);
  });
  const std::string row = "a process's own compute groups";
  if (!crew.AwaitReady()) {
    plan.report.NotMeasured(row, crew.Complaint());
    return false;
  }
  Cell& cell = crew.cell(0);
  plan.report.Figure(row, "channel groups seen", static_cast<double>(cell.values[kGroups]), "", 0);
  plan.report.Figure(row, "of these for compute", static_cast<double>(cell.values[kComputeGroups]), "", 0);
  if (cell.values[kComputeGroups] == 0) {
    plan.report.Words(
        row, "no compute group was seen: this driver is not asked by ioctl, or by another form of it");
    return false;
  }
  const ControlAnswer answer{static_cast<int>(cell.values[kSystem]),
                             static_cast<std::uint32_t>(cell.values[kStatus])};
  plan.report.Figure(row, "slice set by libcuda", static_cast<double>(cell.values[kLibraryUs]), "us", 0);
  plan.report.Figure(row, "slice read", static_cast<double>(cell.values[kGot]), "us", 0);
  plan.report.Words(row, "read, set to 3,000 us, read again: " + InWords(answer));
  plan.report.Figure(row, "slice read after setting", static_cast<double>(cell.values[kGotAfter]), "us", 0);
  std::vector<std::uint32_t> costs = crew.Samples(0, 1);
  plan.report.Figure(row, "setting it, p50", Percentile(costs, 0.5) / 1000, "us");
  plan.report.Figure(row, "setting it, p99", Percentile(costs, 0.99) / 1000, "us");
  return answer.well();
}

// Three processes that never stop, with these slices (0: as libcuda left it): the share that each has.
void Shares(Plan& plan, const std::array<std::uint64_t, 3>& slices, bool while_running, std::uint32_t rounds,
            double kernel_us) {
  std::string row = "slices ";
  for (std::uint64_t slice : slices)
    row += (slice == 0 ? "as they are" : std::to_string(slice)) + (slice == slices[2] ? "" : ", ");
  row = (slices[0] == 0 ? std::string("slices as they are") : row + " us") + ", kernels of " +
        std::to_string(static_cast<int>(kernel_us)) + " us" + (while_running ? ", set while running" : "");
  Crew crew(20);
  crew.Add(3, [&](Stage& stage, Cell& cell, int index) {
    Gpu gpu;
    const std::uint64_t slice = slices[static_cast<std::size_t>(index)];
    ControlAnswer answer{0, 0};
    if (slice != 0 && !while_running) answer = SetAll(slice);
    cell.values[kStatus] = answer.status;
    stage.Ready(cell);
    if (slice != 0 && while_running) {
      for (int i = 0; i < 20; ++i) Check(gpu.driver(), gpu.LaunchWork(rounds), "cuLaunchKernel");
      answer = SetAll(slice);
      cell.values[kStatus] = answer.status;
    }
    Saturate(gpu, stage, cell, rounds, kernel_us);
  });
  if (!crew.AwaitReady()) return plan.report.NotMeasured(row, crew.Complaint());
  crew.Go();
  crew.Sleep(plan.seconds / 2);
  std::vector<double> counts = CountsOver(crew, 0, 3, 2 * plan.seconds);
  crew.Finish();
  const double sum = std::max(1.0, counts[0] + counts[1] + counts[2]);
  for (int i = 0; i < 3; ++i) {
    plan.report.Figure(row, "share of process " + std::to_string(i),
                       counts[static_cast<std::size_t>(i)] / sum, "", 3);
    if (crew.cell(i).values[kStatus] != 0) plan.report.Words(row, "setting the slice failed");
  }
  plan.report.Figure(row, "kernels together", sum / (2 * plan.seconds), "1/s");
}

// One that launches and waits once a millisecond beside three whose slices are `busy_us`.
void OneAmong(Plan& plan, std::uint64_t busy_us, std::uint32_t rounds, double kernel_us) {
  const std::string row =
      "1 kernel a ms beside 3 of " + std::to_string(static_cast<int>(kernel_us)) +
      " us, slices of the 3: " + (busy_us == 0 ? "as they are" : std::to_string(busy_us) + " us");
  Crew crew(15);
  crew.Add(4, [busy_us, rounds, kernel_us](Stage& stage, Cell& cell, int index) {
    Gpu gpu;
    if (index > 0 && busy_us != 0) SetAll(busy_us);
    stage.Ready(cell);
    if (index == 0) return LaunchAndWait(gpu, stage, cell, 1000);
    Saturate(gpu, stage, cell, rounds, kernel_us);
  });
  TellTogether(plan, row, crew, 1);
}

}  // namespace

void MeasureSlices(Plan& plan) {
  plan.report.Part("slices", "whether a process sets its own time slice, and whether the GPU obeys");
  if (!Probe(plan)) return;
  const std::uint32_t rounds = Calibrate(plan.report, 1000);
  if (rounds == 0) return;
  Shares(plan, {0, 0, 0}, false, rounds / 5, 200);
  Shares(plan, {1000, 2000, 4000}, false, rounds / 5, 200);
  Shares(plan, {1000, 2000, 4000}, true, rounds / 5, 200);
  Shares(plan, {4000, 8000, 16000}, false, rounds / 5, 200);
  Shares(plan, {1000, 2000, 4000}, false, 20 * rounds, 20000);
  Shares(plan, {500, 8000, 8000}, false, 20 * rounds, 20000);
  for (std::uint64_t busy_us : {0, 200, 8000}) {
    if (plan.Left() <= 0) return plan.report.NotMeasured("the rest", "the part's time was over");
    OneAmong(plan, busy_us, rounds / 5, 200);
    OneAmong(plan, busy_us, 20 * rounds, 20000);
  }
}

}  // namespace sharing_facts
