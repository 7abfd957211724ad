// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/trace/round_trips.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include "host_backend/command/trace/flight_side.h"
#include "ivshmem_ring/protocol/operation.h"

namespace causeway {
namespace {

using Calls = std::vector<FlightSeen>;

template <class... Values>
std::string Formatted(const char* format, Values... values) {
  char line[256];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

// From when on every channel's calls are all there: a channel that has had more than are kept lacks those before its oldest.
double CompleteFrom(const FlightSide& side) {
  std::map<uint32_t, const FlightSeen*> oldest;
  for (const auto& [key, call] : side.messages) {
    const FlightSeen*& first = oldest[call.link];
    if (first == nullptr || call.begin < first->begin) first = &call;
  }
  double from = 0;
  for (const auto& [link, first] : oldest)
    if (link != kPostedLink && first->number > 1) from = std::max(from, first->begin);
  return from;
}

// Those that waited, as they began, and how many were posted meanwhile.
Calls WaitingCalls(const FlightSide& side, size_t* posted) {
  Calls calls;
  const double from = CompleteFrom(side);
  *posted = 0;
  for (const auto& [key, call] : side.messages) {
    if (call.begin < from) continue;
    if (call.link == kPostedLink)
      ++*posted;
    else
      calls.push_back(call);
  }
  std::sort(calls.begin(), calls.end(),
            [](const FlightSeen& one, const FlightSeen& other) { return one.begin < other.begin; });
  return calls;
}

std::map<std::string, size_t> CountByName(const Calls& calls) {
  std::map<std::string, size_t> counts;
  for (const FlightSeen& call : calls) ++counts[OpName(call.op)];
  return counts;
}

// Of those that are as rare, the one that was called last.
std::string UsualStep(const Calls& calls) {
  const auto counts = CountByName(calls);
  std::string step;
  size_t least = calls.size() + 1;
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
    const size_t count = counts.at(OpName(call->op));
    if (count < 2 || count >= least) continue;
    least = count;
    step = OpName(call->op);
  }
  return step;
}

// The calls behind the first end of a step, up to the last one.
Calls OfWholeSteps(const Calls& calls, const std::string& step, size_t* steps) {
  Calls inside;
  size_t ends = 0, kept = 0;
  for (const FlightSeen& call : calls) {
    if (ends != 0) inside.push_back(call);
    if (step != OpName(call.op)) continue;
    ++ends;
    kept = inside.size();
  }
  *steps = ends != 0 ? ends - 1 : 0;
  inside.resize(kept);
  return inside;
}

// Each name with its share of a step, the most frequent first.
std::string NamesText(const Calls& calls, size_t steps, double us_per_tick) {
  std::vector<std::pair<std::string, size_t>> names;
  for (const auto& entry : CountByName(calls)) names.push_back(entry);
  std::stable_sort(names.begin(), names.end(),
                   [](const auto& one, const auto& other) { return one.second > other.second; });
  std::string text;
  for (const auto& [name, count] : names) {
    double ticks = 0;
    for (const FlightSeen& call : calls)
      if (name == OpName(call.op) && call.end != 0) ticks += call.end - call.begin;
    text += Formatted("  %8.2f  %-40s", double(count) / double(steps), name.c_str());
    if (us_per_tick > 0) text += Formatted(" %10.1f us each", ticks / double(count) * us_per_tick);
    text += "\n";
  }
  return text;
}

}  // namespace

std::string RoundTripText(const TraceInput& input, const std::string& step) {
  FlightSide guest, host;
  guest.Read(input.guest);
  host.Read(input.host);
  const FlightSide& side = guest.present ? guest : host;
  size_t posted = 0, steps = 0;
  const Calls calls = WaitingCalls(side, &posted);
  std::string text = input.guest_name + ": " + std::to_string(calls.size()) +
                     " round trips are recorded whole, and beside them " + std::to_string(posted) +
                     " calls that waited for nothing" + (posted == kFlightMainRecords ? ", or more" : "") +
                     ".\n";
  const std::string end = step.empty() ? UsualStep(calls) : step;
  const Calls inside = OfWholeSteps(calls, end, &steps);
  if (steps == 0) {
    text += end.empty() ? "No call waited twice, so that there is no step; all of them:\n"
                        : end + " did not wait twice, so that there is no step; all that waited:\n";
  } else {
    text += Formatted("%.2f a step, in %zu steps that each end with %s:\n",
                      double(inside.size()) / double(steps), steps, end.c_str());
  }
  double ns = TickLength(side.header.first, &side == &host ? input.now : side.header.last);
  if (ns == 0 && input.one_clock && host.present) ns = TickLength(host.header.first, input.now);
  text += NamesText(steps == 0 ? calls : inside, std::max<size_t>(steps, 1), ns / 1000);
  if (ns > 0)
    text += guest.present
                ? "Times are those that the program waited.\n"
                : "Times are those on the host, without the way: the guest's side was not recorded.\n";
  text.pop_back();  // its caller ends the last line
  return text;
}

}  // namespace causeway
