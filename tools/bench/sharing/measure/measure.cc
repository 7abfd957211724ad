// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sharing/measure/measure.h"

#include <unistd.h>

#include <algorithm>

#include "tools/bench/sharing/measure/figures_of.h"
#include "tools/bench/sharing/measure/special.h"
#include "tools/bench/sharing/program.h"

namespace causeway::bench::sharing {
namespace {

// Asks what the row's change says, while its processes work. "" or what was refused.
std::string MakeChange(const Ground& ground, const Change& change, double seconds, Crew& crew,
                       Timeline* timeline) {
  const auto now_ms = [&] { return static_cast<double>(NowNs() - crew.stage().begin_ns) / 1e6; };
  const auto ask = [&](const Json& request) {
    const auto answer = ground.Ask(request);
    return answer.ok() ? "" : answer.error();
  };
  crew.Sleep(change.after * seconds);
  timeline->asked_ms = now_ms();
  if (change.key != "pause") {
    Json value = change.value;
    if (const Json number = Json::parse(change.value, nullptr, false); number.is_number()) value = number;
    return ask({{"do", "set"}, {"name", Ground::ScopeOf(0)}, {change.key, value}});
  }
  if (std::string text = ask({{"do", "pause"}, {"name", Ground::ScopeOf(0)}}); !text.empty()) return text;
  crew.Sleep(change.after * seconds);
  timeline->resumed_ms = now_ms();
  return ask({{"do", "resume"}, {"name", Ground::ScopeOf(0)}});
}

// What the daemon says that each user had; `sign` -1: it is taken away again, because it was before.
void ReadShares(const Ground& ground, int users, int sign, Timeline* timeline) {
  for (const Json& share : ground.Status().value("shares", Json::array())) {
    const std::string scope = share.value("scope", "");
    for (int user = 0; user < users; ++user) {
      if (scope != Ground::ScopeOf(user) || !share["had_s"].is_number()) continue;
      timeline->charged_s[user] += sign * share["had_s"].get<double>();
      timeline->turns[user] += sign * share.value("turns", int64_t{0});
    }
  }
}

// What they have queued ends, soon on a GPU.
void AwaitEnded(Crew& crew) {
  constexpr uint64_t kMostNs = 10'000'000'000;
  const uint64_t end = NowNs() + kMostNs;
  for (int i = 0; i < crew.size(); ++i) {
    while (crew.cell(i).state == State::kReady) {
      if (NowNs() > end || crew.Reap(i, 0)) break;
      usleep(500);
    }
  }
}

Outcome MeasureLoads(Measurement& measurement, const Row& row, Way way, const Outcome& alone) {
  Outcome outcome;
  std::vector<LoadPlan> plans;
  for (const Load& load : row.loads) {
    if (way != kAlone || plans.empty()) plans.push_back(measurement.PlanOf(load, plans.size() + 1));
  }
  const double seconds = measurement.SecondsOf(row);
  auto made = Ground::Make(
      way, measurement.host(),
      {.terms = row.terms, .users = UsersOf(row), .programs = row.loads[0].work == Work::kProgram});
  if (!made.ok()) return outcome.error = made.error(), outcome;
  Ground& ground = *made.value();
  Crew crew(kStartLimitS + seconds);
  for (const LoadPlan& plan : plans)
    crew.Add(
        1,
        [&plan](Stage& stage, Cell& cell, int) {
          plan.load.work == Work::kProgram ? RunProgram(stage, cell, plan) : Run(stage, cell, plan);
        },
        ground.PlaceOf(plan.load.user));
  if (!crew.AwaitReady()) return outcome.error = crew.Complaint(), outcome;
  // A program that does not find Causeway's library would be measured natively.
  if (way == kCauseway && ground.Status().value("sessions", Json::array()).size() < plans.size())
    return outcome.error = "a process has no session: it does not use Causeway's library", outcome;
  Timeline timeline;
  if (way == kCauseway) ReadShares(ground, UsersOf(row), -1, &timeline);
  crew.Go(seconds);
  if (way == kCauseway && row.change.after > 0) {
    outcome.error = MakeChange(ground, row.change, seconds, crew, &timeline);
    if (!outcome.error.empty()) return outcome;
  }
  const double passed = static_cast<double>(NowNs() - crew.stage().begin_ns) / 1e9;
  crew.Sleep(std::max(0.0, seconds - passed));
  AwaitEnded(crew);
  if (way == kCauseway) ReadShares(ground, UsersOf(row), 1, &timeline);
  timeline.lost = LostOf(crew, crew.size());
  if (timeline.lost > 0 && row.change.after == 0) return outcome.error = crew.Complaint(), outcome;
  crew.Finish();
  const double request_ms = AnswersRequests(row.loads[0]) ? measurement.RequestMsOf(row.loads[0]) : 0;
  Tell({row, way, plans, crew, seconds, timeline, request_ms, alone}, &outcome);
  return outcome;
}

}  // namespace

Outcome Measure(Measurement& measurement, const Row& row, Way way, const Outcome& alone) {
  const uint64_t begin = NowNs();
  Outcome outcome;
  try {
    switch (row.runner) {
      case Runner::kLoads:
        outcome = MeasureLoads(measurement, row, way, alone);
        break;
      case Runner::kSharingOnAndOff:
        outcome = MeasureOnAndOff(measurement, row, way);
        break;
      case Runner::kFaults:
        outcome = MeasureFaults(measurement, row, way);
        break;
      case Runner::kDeaths:
        outcome = MeasureDeaths(measurement, row, way);
        break;
      case Runner::kSessions:
        outcome = MeasureSessions(measurement, row);
        break;
    }
  } catch (const Failure& failure) {
    outcome.error = failure.what();
  }
  outcome.seconds = static_cast<double>(NowNs() - begin) / 1e9;
  return outcome;
}

}  // namespace causeway::bench::sharing
