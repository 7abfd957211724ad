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

// Both sides' processes and workers have the same processors: on which ones they are decides more, for as long as they live, than what
// is asked here. Where there are too few, or others own them, they stay where they are.
void BindAlike(Crew& crew, const std::vector<std::unique_ptr<Ground>>& grounds) {
  const std::vector<int> near = ProcessorPair(0, 2), far = ProcessorPair(1, 2);
  for (size_t side = 0; side < grounds.size(); ++side) {
    const pid_t pid = crew.pid(static_cast<int>(side));
    BindProcess(pid, near);
    BindProcess(WorkersOf(grounds[side]->daemon().socket())[pid], far);
  }
}

}  // namespace

// Both sides' processes live all the time and work one at a time, so that what disturbs one disturbs the other.
Outcome MeasureOnAndOff(Measurement& measurement, const Row& row, Way way) {
  Outcome outcome;
  const double seconds = measurement.SecondsOf(row);
  const int sides = way == kCauseway ? 2 : 1;
  std::vector<std::unique_ptr<Ground>> grounds;
  for (int side = 0; side < sides; ++side) {
    DaemonPlan plan;
    plan.takes_turns = side == 0;
    auto made = Ground::Make(way, measurement.host(), plan);
    if (!made.ok()) return outcome.error = made.error(), outcome;
    grounds.push_back(std::move(made.value()));
  }
  Crew crew(kStartLimitS + seconds);
  const bool quick = measurement.host().quick;
  for (int side = 0; side < sides; ++side) {
    crew.Add(
        1,
        [side, quick](Stage& stage, Cell& cell, int) {
          MeasureAlone(stage, cell, uint32_t(side + 1), quick);
        },
        grounds[size_t(side)]->PlaceOf(0));
  }
  if (!crew.AwaitReady()) return outcome.error = crew.Complaint(), outcome;
  if (sides == 2) BindAlike(crew, grounds);
  crew.Go();
  const uint64_t end = NowNs() + static_cast<uint64_t>(seconds * 1e9);
  std::array<Samples, 2> samples;
  Samples ratios;
  for (int round = 0; round == 0 || NowNs() < end; ++round) {
    // The order alternates, so that neither side always meets the warmer machine.
    std::array<std::array<double, kOnOffValues>, 2> values{};
    bool whole = true;
    for (int i = 0; i < sides; ++i) {
      const int side = (i + round) % sides;
      whole = whole && Measure(crew, side);
      for (int at = 0; at < kOnOffValues; ++at)
        values[size_t(side)][size_t(at)] =
            static_cast<double>(crew.cell(side).values[size_t(at)]) / kPicoseconds[at];
    }
    if (!whole) break;
    for (size_t at = 0; at < kOnOffValues; ++at) {
      for (size_t side = 0; side < size_t(sides); ++side) samples[side][at].push_back(values[side][at]);
      if (sides == 2) ratios[at].push_back(values[0][at] / std::max(values[1][at], 1e-9));
    }
  }
  if (samples[0][0].empty()) return outcome.error = crew.Complaint(), outcome;
  for (size_t at = 0; at < kOnOffValues; ++at) {
    outcome.figures[kOnOffIds[at]] = Median(samples[0][at]);
    if (sides < 2) continue;
    outcome.figures[std::string(kOnOffIds[at]) + "_off"] = Median(samples[1][at]);
    outcome.figures[std::string(kOnOffIds[at]) + "_ratio"] = Median(ratios[at]);
  }
  return outcome;
}

}  // namespace causeway::bench::sharing
