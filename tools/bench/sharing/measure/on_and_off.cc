// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tools/bench/crew/statistics.h"
#include "tools/bench/process.h"
#include "tools/bench/sharing/measure/special.h"

namespace causeway::bench::sharing {
namespace {

constexpr const char* kOnOffIds[kOnOffValues] = {"launch", "wait", "h2d", "d2h"};
constexpr double kPicoseconds[kOnOffValues] = {1e6, 1e6, 1e9, 1e9};  // of the figure's unit
using Samples = std::array<std::vector<double>, kOnOffValues>;

// Has the child of that turn measure once. False: it did not in time.
bool Measure(Crew& crew, int child) {
  crew.stage().turn = static_cast<uint32_t>(child + 1);
  while (crew.stage().turn != 0) {
    if (crew.stage().Over() || crew.Reap(child, 0)) return false;
    usleep(100);
  }
  return true;
}

using Grounds = std::vector<std::unique_ptr<Ground>>;

// Binds the processes of both sides to the same two processors, and their workers to two others, so that the sides do not differ by
// that. Where there are too few, all stay where they are. Empty, or why a side may be bound and the other not.
std::string BindAlike(Crew& crew, const Grounds& grounds) {
  const std::vector<int> near = ProcessorPair(0, 2), far = ProcessorPair(1, 2);
  if (near.empty() || far.empty()) return {};
  for (size_t side = 0; side < grounds.size(); ++side) {
    const pid_t pid = crew.pid(static_cast<int>(side));
    const bool has_worker = grounds.size() == 2;
    if (!BindProcess(pid, near) ||
        (has_worker && !BindProcess(WorkersOf(grounds[side]->daemon().socket())[pid], far)))
      return "a process or its worker could not be bound to processors";
  }
  return {};
}

// New processes, one for each side, measure in turns. Empty, or what failed.
std::string MeasurePair(const Grounds& grounds, bool quick, std::array<Samples, 2>* samples) {
  constexpr int kTurns = 6;
  constexpr double kSparesLimitS = 20, kWorkLimitS = 60;
  Crew crew(kStartLimitS + kSparesLimitS + kWorkLimitS);
  const int sides = static_cast<int>(grounds.size());
  for (int side = 0; side < sides; ++side) {
    crew.Add(
        1,
        [side, quick](Stage& stage, Cell& cell, int) {
          MeasureAlone(stage, cell, uint32_t(side + 1), quick);
        },
        grounds[size_t(side)]->PlaceOf(0));
  }
  if (!crew.AwaitReady()) return crew.Complaint();
  // The start of the next spare worker would be in the way.
  for (const auto& ground : grounds) {
    if (sides == 2 && !ground->AwaitSpares(kSparesLimitS)) return "no spare worker became ready";
  }
  if (std::string text = BindAlike(crew, grounds); !text.empty()) return text;
  crew.Go();
  for (int turn = 0; turn < kTurns; ++turn) {
    // The order alternates, so that neither side always meets the warmer machine.
    for (int i = 0; i < sides; ++i) {
      const int side = (i + turn) % sides;
      if (!Measure(crew, side)) return crew.Complaint();
      for (size_t at = 0; at < kOnOffValues; ++at)
        (*samples)[size_t(side)][at].push_back(static_cast<double>(crew.cell(side).values[at]) /
                                               kPicoseconds[at]);
    }
  }
  crew.Finish();
  return {};
}

}  // namespace

// Both sides' processes live at the same time and work one at a time, so that what disturbs one disturbs the other. Single processes
// differ by a quarter for as long as they live (docs/gpu_results_later.md), whatever is asked here: so there are many pairs of them, and the
// ratio is the median of theirs.
Outcome MeasureOnAndOff(Measurement& measurement, const Row& row, Way way) {
  Outcome outcome;
  Grounds grounds;
  for (int side = 0; side < (way == kCauseway ? 2 : 1); ++side) {
    DaemonPlan plan;
    plan.takes_turns = side == 0;
    auto made = Ground::Make(way, measurement.host(), plan);
    if (!made.ok()) return outcome.error = made.error(), outcome;
    grounds.push_back(std::move(made.value()));
  }
  std::array<Samples, 2> medians;
  Samples ratios;
  const uint64_t end = NowNs() + static_cast<uint64_t>(measurement.SecondsOf(row) * 1e9);
  for (int pair = 0; pair == 0 || NowNs() < end; ++pair) {
    std::array<Samples, 2> samples;
    outcome.error = MeasurePair(grounds, measurement.host().quick, &samples);
    if (!outcome.error.empty()) return outcome;
    for (size_t at = 0; at < kOnOffValues; ++at) {
      for (size_t side = 0; side < grounds.size(); ++side)
        medians[side][at].push_back(Median(samples[side][at]));
      if (grounds.size() == 2)
        ratios[at].push_back(medians[0][at].back() / std::max(medians[1][at].back(), 1e-9));
    }
  }
  outcome.figures["pairs"] = static_cast<double>(medians[0][0].size());
  for (size_t at = 0; at < kOnOffValues; ++at) {
    outcome.figures[kOnOffIds[at]] = Median(medians[0][at]);
    if (grounds.size() < 2) continue;
    outcome.figures[std::string(kOnOffIds[at]) + "_off"] = Median(medians[1][at]);
    outcome.figures[std::string(kOnOffIds[at]) + "_ratio"] = Median(ratios[at]);
  }
  return outcome;
}

}  // namespace causeway::bench::sharing
