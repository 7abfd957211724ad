// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sharing/measure/figures_of.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tools/bench/crew/statistics.h"

namespace causeway::bench::sharing {
namespace {

constexpr size_t kShort = 10, kLong = 100;  // windows of 100 ms and of 1 s
constexpr double kWindowMs = kWindowNs / 1e6;
using ByUser = std::map<int, double>;

// What one unit of the process's work is: bytes of a copy, or microseconds of kernels.
double UnitOf(const LoadPlan& plan) {
  switch (plan.load.work) {
    case Work::kCopy:
      return static_cast<double>(plan.load.bytes);
    case Work::kInference:
      return plan.kernel.us * plan.tokens * plan.token_kernels;
    case Work::kTraining:
      return plan.kernel.us * plan.step_kernels;
    default:
      return std::max(plan.kernel.us, 1e-9);
  }
}

double Sum(const ByUser& values) {
  double sum = 0;
  for (const auto& [user, value] : values) sum += value;
  return sum;
}

size_t WindowsOf(const Seen& seen) {
  return std::min(kMostWindows, static_cast<size_t>(seen.seconds * 1e9 / kWindowNs));
}

uint64_t CountOf(const Seen& seen, size_t process, size_t from, size_t windows) {
  uint64_t count = 0;
  for (size_t at = from; at < std::min(kMostWindows, from + windows); ++at)
    count += seen.crew.cell(static_cast<int>(process)).windows[at];
  return count;
}

// Work of each user whose processes do what `work` says, in those windows; without any: in all the time.
ByUser WorkOf(const Seen& seen, Work work, size_t from = 0, size_t windows = 0) {
  ByUser all;
  for (size_t i = 0; i < seen.plans.size(); ++i) {
    if (seen.plans[i].load.work != work) continue;
    const uint64_t count =
        windows == 0 ? seen.crew.cell(static_cast<int>(i)).count.load() : CountOf(seen, i, from, windows);
    all[seen.plans[i].load.user] += static_cast<double>(count) * UnitOf(seen.plans[i]);
  }
  return all;
}

double JainOf(const Row& row, const ByUser& work) {
  std::vector<double> by_weight;
  for (const auto& [user, done] : work) by_weight.push_back(done / WeightOf(row, user));
  return Jain(by_weight);
}

double LeastJain(const Seen& seen, Work work, size_t windows) {
  double least = 1;
  bool any = false;
  for (size_t from = 0; from + windows <= WindowsOf(seen); from += windows) {
    least = std::min(least, JainOf(seen.row, WorkOf(seen, work, from, windows)));
    any = true;
  }
  return any ? least : std::nan("");
}

// How far the share that is farthest from its due is from it, in percent of it.
double ErrorOf(const Row& row, const ByUser& had) {
  ByUser due;
  for (const auto& [user, value] : had) due[user] = WeightOf(row, user);
  const double all = std::max(Sum(had), 1e-12), weights = std::max(Sum(due), 1e-12);
  double farthest = 0;
  for (const auto& [user, value] : had)
    farthest = std::max(farthest, std::abs(value / all / (due[user] / weights) - 1) * 100);
  return farthest;
}

// Of the process whose 99th percentile is the highest.
void TellLatency(const Seen& seen, Outcome* outcome) {
  const Work work = seen.plans[0].load.work;
  if (work == Work::kFull || work == Work::kTraining) return;
  const bool requests = AnswersRequests(seen.plans[0].load);
  Figures& figures = outcome->figures;
  double worst = -1, count = 0;
  for (size_t i = 0; i < seen.plans.size(); ++i) {
    // Of copies and requests the first process is the one that is told of.
    if (seen.plans[i].load.work != work || (work != Work::kWait && i > 0)) continue;
    count += static_cast<double>(seen.crew.cell(static_cast<int>(i)).count);
    std::vector<uint32_t> samples = seen.crew.Samples(static_cast<int>(i), 1);
    if (samples.empty()) continue;
    const double p99 = Percentile(samples, 0.99) / 1e3;
    figures["longest"] = std::max(figures["longest"], samples.back() / 1e3);
    if (p99 <= worst) continue;
    worst = figures["p99"] = p99;
    figures["p50"] = Percentile(samples, 0.5) / 1e3;
    figures["p999"] = Percentile(samples, 0.999) / 1e3;
    if (!requests) continue;
    outcome->details["latency_us"] = Json::array();
    const size_t step = std::max<size_t>(1, samples.size() / 200);
    for (size_t at = 0; at < samples.size(); at += step)
      outcome->details["latency_us"].push_back(
          {Rounded(double(at + 1) / double(samples.size())), Rounded(samples[at] / 1e3)});
    outcome->details["latency_us"].push_back({1, Rounded(samples.back() / 1e3)});
  }
  figures[requests ? "requests" : "calls"] = count / seen.seconds;
}

void TellShares(const Seen& seen, Work work, Outcome* outcome) {
  Figures& figures = outcome->figures;
  const ByUser done = WorkOf(seen, work);
  if (done.empty()) return;
  const double all = Sum(done);
  for (const auto& [user, value] : done) {
    if (work == Work::kCopy) figures["rate" + std::to_string(user)] = value / seen.seconds / 1e9;
    figures["share" + std::to_string(user)] = value / std::max(all, 1e-12);
  }
  if (work != Work::kCopy) figures["gpu"] = all / 1e6 / seen.seconds;
  if (done.size() < 2) return;
  figures["share_error"] = ErrorOf(seen.row, done);
  figures["jain"] = JainOf(seen.row, done);
  figures["jain_1s"] = LeastJain(seen, work, kLong);
  figures["jain_100ms"] = LeastJain(seen, work, kShort);
}

void TellCharged(const Seen& seen, Outcome* outcome) {
  const ByUser& charged = seen.timeline.charged_s;
  if (charged.empty()) return;
  outcome->details["turns"] = Json::array();
  for (const auto& [user, turns] : seen.timeline.turns) outcome->details["turns"].push_back(turns);
  if (charged.size() > 1) outcome->figures["charged_error"] = ErrorOf(seen.row, charged);
  const double percent = charged.begin()->second / seen.seconds * 100;
  outcome->figures["charged_percent"] = percent;
  const auto terms = seen.row.terms.find(0);
  constexpr char kCap[] = "cap = ";
  if (terms != seen.row.terms.end() && terms->second.starts_with(kCap))
    outcome->figures["cap_error"] = std::abs(percent - std::atof(terms->second.c_str() + sizeof kCap - 1));
}

double FirstShare(const Seen& seen, size_t from, size_t windows) {
  ByUser work = WorkOf(seen, seen.plans[0].load.work, from, windows);
  return work[0] / std::max(Sum(work), 1e-12);
}

// When the first user's share in the next 100 ms is what it is to be, a twentieth of the GPU more or less.
void TellChange(const Seen& seen, Outcome* outcome) {
  constexpr double kNear = 0.05;
  const size_t asked = static_cast<size_t>(seen.timeline.asked_ms / kWindowMs), end = WindowsOf(seen);
  outcome->figures["share_before"] =
      FirstShare(seen, asked - std::min(asked, 4 * kShort), std::min(asked, 4 * kShort));
  const size_t settled = std::min(end, asked + 2 * kShort);
  if (settled < end) outcome->figures["share_after"] = FirstShare(seen, settled, end - settled);
  // Where it never is, what is told is how long it was not.
  outcome->figures["in_force"] = seen.seconds * 1e3 - seen.timeline.asked_ms;
  for (size_t from = asked; from + kShort <= end; ++from) {
    if (std::abs(FirstShare(seen, from, kShort) - seen.row.change.due) > kNear) continue;
    outcome->figures["in_force"] =
        std::max(0.0, static_cast<double>(from) * kWindowMs - seen.timeline.asked_ms);
    break;
  }
  outcome->details["changed_s"] = Rounded(seen.timeline.asked_ms / 1e3);
}

void TellPause(const Seen& seen, Outcome* outcome) {
  const size_t asked = static_cast<size_t>(seen.timeline.asked_ms / kWindowMs);
  const size_t resumed = static_cast<size_t>(seen.timeline.resumed_ms / kWindowMs);
  Figures& figures = outcome->figures;
  const double before_s = static_cast<double>(asked) * kWindowMs / 1e3;
  if (before_s > 0) figures["calls_before"] = static_cast<double>(CountOf(seen, 0, 0, asked)) / before_s;
  size_t last = asked;
  for (size_t at = asked; at < resumed; ++at) {
    if (CountOf(seen, 0, at, 1) != 0) last = at + 1;
  }
  figures["in_force"] = std::max(0.0, static_cast<double>(last) * kWindowMs - seen.timeline.asked_ms);
  figures["resumed"] = seen.seconds * 1e3 - seen.timeline.resumed_ms;
  for (size_t at = resumed; at < WindowsOf(seen); ++at) {
    if (CountOf(seen, 0, at, 1) == 0) continue;
    figures["resumed"] = std::max(0.0, static_cast<double>(at) * kWindowMs - seen.timeline.resumed_ms);
    break;
  }
}

void TellShareCurve(const Seen& seen, Outcome* outcome) {
  Json shares = Json::array();
  for (size_t from = 0; from + kShort <= WindowsOf(seen); from += kShort) {
    const ByUser work = WorkOf(seen, seen.plans[0].load.work, from, kShort);
    Json each = Json::array();
    for (const auto& [user, done] : work) each.push_back(Rounded(done / std::max(Sum(work), 1e-12)));
    shares.push_back(each);
  }
  outcome->details["shares"] = shares;
}

// Of what is possible: as many times what one does alone as there are, and no more than the GPU has time for.
void TellTogether(const Seen& seen, Outcome* outcome) {
  const auto alone = seen.alone.figures.find("gpu");
  const double own = seen.way == kAlone                  ? outcome->figures["gpu"]
                     : alone == seen.alone.figures.end() ? 0
                                                         : alone->second;
  if (own > 0)
    outcome->figures["together"] =
        outcome->figures["gpu"] / std::min(1.0, own * static_cast<double>(seen.plans.size()));
}

// The second process never stops.
void TellBeside(const Seen& seen, Outcome* outcome) {
  if (seen.plans.size() < 2) return;
  if (seen.plans[1].load.work == Work::kProgram) {
    outcome->figures["steps"] = static_cast<double>(seen.crew.cell(1).count) / seen.seconds;
    return;
  }
  const double training = Sum(WorkOf(seen, Work::kFull)) / 1e6 / seen.seconds;
  const double busy = outcome->figures["requests"] * seen.request_ms / 1e3;
  outcome->figures["training"] = training;
  outcome->figures["of_idle"] = training / std::max(1 - busy, 1e-3);
}

}  // namespace

void Tell(const Seen& seen, Outcome* outcome) {
  TellLatency(seen, outcome);
  for (const Work work : {Work::kFull, Work::kTraining, Work::kCopy}) TellShares(seen, work, outcome);
  TellCharged(seen, outcome);
  if (seen.plans[0].load.work == Work::kTraining) TellTogether(seen, outcome);
  if (seen.request_ms > 0) TellBeside(seen, outcome);
  if (seen.timeline.asked_ms < 0) return;
  outcome->figures["lost"] = seen.timeline.lost;
  if (seen.timeline.resumed_ms >= 0) return TellPause(seen, outcome);
  TellChange(seen, outcome);
  TellShareCurve(seen, outcome);
}

}  // namespace causeway::bench::sharing
