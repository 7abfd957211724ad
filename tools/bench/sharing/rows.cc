// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sharing/rows.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace causeway::bench::sharing {
namespace {

using enum Goal;

// Seconds that a way takes to start and end the processes of a row: contexts start one after the other.
constexpr double kStartS = 1.5, kStartOfEachS = 0.6;
constexpr uint64_t kGiB = uint64_t{1} << 30;

std::vector<Load> Each(int first, int last, Load load) {
  std::vector<Load> loads;
  for (int user = first; user <= last; ++user) {
    load.user = user;
    loads.push_back(load);
  }
  return loads;
}
std::vector<Load> operator+(std::vector<Load> some, const std::vector<Load>& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}
Load Waits(double kernel_us = 0, double gap_us = 0) {
  return {.work = Work::kWait, .kernel_us = kernel_us, .gap_us = gap_us};
}
Load Full(double kernel_us) {
  return {.work = Work::kFull, .kernel_us = kernel_us};
}
Load Copies(uint64_t bytes) {
  return {.work = Work::kCopy, .bytes = bytes};
}

std::vector<FigureGoal> Calls(FigureGoal rate, FigureGoal p50, FigureGoal p99, FigureGoal p999) {
  return {std::move(rate), std::move(p50), std::move(p99), std::move(p999), {"longest", "longest", "us", 0}};
}
const FigureGoal kRate{"calls", "calls a second together", "1/s", 0};
const FigureGoal kP50{"p50", "p50 of a launch and its wait", "us", 1}, kP99{"p99", "p99", "us", 1},
    kP999{"p999", "p99.9", "us", 1};
FigureGoal With(FigureGoal figure, Goal goal, double limit, Way beside = kAlone) {
  figure.goal = goal;
  figure.limit = limit;
  figure.beside = beside;
  return figure;
}

std::vector<FigureGoal> Shares(int users, bool fair, bool by_charge) {
  std::vector<FigureGoal> figures = {{"gpu", "of what one alone does, together", "", 3}};
  for (int user = 0; user < users; ++user)
    figures.push_back({"share" + std::to_string(user), "share of VM " + std::to_string(user + 1), "", 3});
  figures.push_back(With({"share_error", "a share's distance from its due, the farthest", "%", 1},
                         by_charge ? kNone : kAtMost, 2));
  if (by_charge)
    figures.push_back({"charged_error", "the same of what each was charged", "%", 1, kAtMost, 2});
  figures.push_back({"jain", "Jain's index", "", 3});
  figures.push_back({"jain_1s", "the same, least of any second", "", 3, fair ? kAtLeast : kNone, 0.99});
  figures.push_back({"jain_100ms", "the same, least of 100 ms", "", 3, fair ? kAtLeast : kNone, 0.95});
  return figures;
}

void AddCalls(std::vector<Row>* rows) {
  const std::vector<Load> beside_three = std::vector<Load>{Waits(0, 1000)} + Each(1, 3, Full(200));
  rows->push_back({"wait1", "one launches and waits", {Waits()}, Calls(kRate, kP50, kP99, kP999)});
  rows->push_back({"wait4", "four launch and wait", Each(0, 3, Waits()),
                   Calls(With(kRate, kAtLeast, 100'000), With(kP50, kAtMost, 12), With(kP99, kAtMost, 15),
                         With(kP999, kAtMost, 7000))});
  rows->push_back({"wait8", "eight launch and wait", Each(0, 7, Waits()), Calls(kRate, kP50, kP99, kP999)});
  // Two milliseconds and a switch between contexts.
  rows->push_back({"beside", "once a millisecond beside three", beside_three,
                   Calls(kRate, kP50, With(kP99, kAtMost, 2150), kP999)});
  Row latency{"beside_latency", "latency class beside three", beside_three, Calls(kRate, kP50, kP99, kP999)};
  latency.terms = {{0, "class = \"latency\""}};
  latency.ways = kCausewayAlone;
  rows->push_back(latency);
}

void AddShares(std::vector<Row>* rows) {
  std::vector<Load> mixed;
  for (const double us : {20, 200, 2000, 20000}) mixed.push_back({int(mixed.size()), Work::kFull, us});
  rows->push_back({"mixed", "kernels of 20 us to 20 ms", mixed, Shares(4, true, true)});
  Row weights{"weights", "weights 1:2:4", Each(0, 2, Full(200)), Shares(3, true, false)};
  weights.figures[0] = With(weights.figures[0], kTimesAtLeast, 1.03, kSlices);
  weights.terms = {{0, "weight = 100"}, {1, "weight = 200"}, {2, "weight = 400"}};
  rows->push_back(weights);
  rows->push_back({"processes", "four, one, one and one process",
                   std::vector<Load>(4, Full(200)) + Each(1, 3, Full(200)), Shares(4, true, false)});
  // Turns do not bound kernels that are longer than one, the GPU's slices do.
  Row longer{"long_kernels", "kernels of 300 ms beside two",
             std::vector<Load>{Full(300'000)} + Each(1, 2, Full(200)), Shares(3, false, false)};
  longer.lengths = 3;
  rows->push_back(longer);
  longer.id = "long_weight";
  longer.name = "the same, of weight 400";
  longer.terms = {{0, "weight = 400"}};
  longer.ways = kCausewayAlone;
  rows->push_back(longer);
  for (const int cap : {25, 50, 75}) {
    const std::string percent = std::to_string(cap);
    Row row{"cap" + percent,
            "cap of " + percent + " %",
            {Full(200)},
            {{"gpu", "of what one alone does", "", 3},
             {"charged_percent", "time charged", "%", 1},
             {"cap_error", "its distance from the cap", "%", 1, kAtMost, 2}}};
    row.terms = {{0, "cap = " + percent}};
    row.ways = kCausewayAlone;
    rows->push_back(row);
  }
}

void AddChanges(std::vector<Row>* rows) {
  const auto add = [&](const char* id, const char* name, std::vector<Load> loads, Change change,
                       std::map<int, std::string> terms = {}) {
    Row row{id,
            name,
            std::move(loads),
            {{"share_before", "share before", "", 3},
             {"share_after", "share afterwards", "", 3},
             {"in_force", "in force after", "ms", 0, kAtMost, 100},
             {"lost", "sessions lost", "", 0, kAtMost, 0}}};
    row.change = std::move(change);
    row.terms = std::move(terms);
    row.ways = kCausewayAlone;
    rows->push_back(row);
  };
  const std::vector<Load> two = Each(0, 1, Full(200));
  add("set_weight", "weight 100 becomes 400 beside 100", two, {0.5, "weight", "400", 0.8});
  add("set_cap", "cap 100 becomes 25 beside another", two, {0.5, "cap", "25", 0.25});
  add("set_class", "normal becomes background beside another", two, {0.5, "class", "background", 0.02});
  add("set_1_2_4", "weights 1:2:4, the first becomes 4", Each(0, 2, Full(200)), {0.5, "weight", "400", 0.4},
      {{0, "weight = 100"}, {1, "weight = 200"}, {2, "weight = 400"}});
  add("pause", "paused, and resumed", {Waits()}, {0.33, "pause", "", 0});
  rows->back().figures = {{"calls_before", "calls a second before", "1/s", 0},
                          {"in_force", "the last call after the pause", "ms", 0, kAtMost, 100},
                          {"resumed", "the first call after the end of the pause", "ms", 0, kAtMost, 100},
                          {"lost", "sessions lost", "", 0, kAtMost, 0}};
}

void AddCopies(std::vector<Row>* rows) {
  const std::vector<FigureGoal> rates = {{"rate0", "of VM 1", "GB/s", 1}, {"rate1", "of VM 2", "GB/s", 1}};
  rows->push_back({"copies", "copies of two", Each(0, 1, Copies(kGiB)), rates});
  Row weighted{"copies_1_3", "copies of two, weights 1:3", Each(0, 1, Copies(64u << 20)), rates};
  weighted.figures.push_back(
      {"share_error", "a share's distance from its due, the farthest", "%", 1, kAtMost, 5});
  weighted.terms = {{0, "weight = 100"}, {1, "weight = 300"}};
  rows->push_back(weighted);
  rows->push_back({"copy_beside",
                   "4 bytes beside another's 1 GiB",
                   {Copies(4), {1, Work::kCopy, 0, 0, kGiB}},
                   {{"p50", "p50 of a copy of 4 bytes", "us", 1, kTimesAtMost, 1.25, kAlone},
                    {"p99", "p99", "us", 1},
                    {"rate1", "of the other", "GB/s", 1}}});
}

void AddPrograms(std::vector<Row>* rows) {
  const std::vector<Load> beside = {{.user = 0, .work = Work::kInference, .kernel_us = 4},
                                    {.user = 1, .work = Work::kFull, .kernel_us = 300}};
  Row inference{"inference",
                "inference of class latency beside training",
                beside,
                {{"p50", "p50 of a request", "us", 0, kTimesAtMost, 1.1, kAlone},
                 {"p99", "p99 of a request", "us", 0, kTimesAtMost, 1.3, kAlone},
                 {"requests", "requests a second", "1/s", 1},
                 {"training", "training, of what it does alone", "", 3},
                 {"of_idle", "the same, of what inference leaves idle", "", 3, kAtLeast, 0.9}}};
  inference.terms = {{0, "class = \"latency\""}};
  inference.lengths = 2;
  rows->push_back(inference);
  inference.id = "inference_normal";
  inference.name = "inference without a class beside training";
  inference.terms.clear();
  inference.ways = kCausewayAlone;
  for (FigureGoal& figure : inference.figures) figure.goal = kNone;
  rows->push_back(inference);
  Row torch{"torch",
            "GPT-2 beside training, both by PyTorch",
            {{.user = 0, .work = Work::kProgram, .script = "inference"},
             {.user = 1, .work = Work::kProgram, .script = "training"}},
            {{"p50", "p50 of a request", "us", 0, kTimesAtMost, 1.1, kAlone},
             {"p99", "p99 of a request", "us", 0, kTimesAtMost, 1.3, kAlone},
             {"requests", "requests a second", "1/s", 1},
             {"steps", "steps of the training a second", "1/s", 2}}};
  torch.terms = {{0, "class = \"latency\""}};
  torch.lengths = 5;
  torch.start_s = 25;
  torch.only_named = true;
  rows->push_back(torch);
  for (const int count : {2, 4, 8}) {
    Load training{.work = Work::kTraining, .kernel_us = 100, .gap_us = 4000};
    const std::string number = std::to_string(count);
    rows->push_back({"training" + number,
                     number + " small trainings",
                     Each(0, count - 1, training),
                     {{"gpu", "of the GPU's time", "", 3},
                      {"together", "of what is possible", "", 3, kAtLeast, 0.97},
                      {"together", "the same", "", 3, kTimesAtLeast, 1.03, kSlices},
                      {"jain", "Jain's index", "", 3}}});
  }
}

void AddSpecial(std::vector<Row>* rows) {
  Row alone{"on_off", "one VM alone, sharing on and off", {}, {}};
  const struct {
    const char *id, *name;
    const char* unit;
  } kSides[] = {{"launch", "launch, drained", "us"},
                {"wait", "launch and wait", "us"},
                {"h2d", "64 MiB to the device", "ms"},
                {"d2h", "64 MiB to the host", "ms"}};
  for (const auto& [id, name, unit] : kSides) {
    alone.figures.push_back({id, name, unit, 3});
    alone.figures.push_back({std::string(id) + "_off", "the same with sharing off", unit, 3});
    alone.figures.push_back({std::string(id) + "_ratio", "on over off", "", 4, kAtMost, 1.01});
  }
  alone.figures.push_back({"pairs", "pairs of processes", "", 0});
  alone.ways = 1u << kAlone | kCausewayAlone;
  alone.runner = Runner::kSharingOnAndOff;
  rows->insert(rows->begin(), alone);

  Row faults{"faults",
             "one faults and is killed beside three",
             {},
             {{"faults", "faults in six ways", "", 0},
              {"kills", "kills", "", 0},
              {"errors", "others with an error", "", 0, kAtMost, 0},
              {"wrong_bytes", "wrong bytes of the others", "", 0, kAtMost, 0},
              {"calm", "longest round of the others before", "ms", 1},
              {"stall", "longest round of the others meanwhile", "ms", 1, kOverAtMost, 10, kSlices}}};
  faults.ways = kEveryWay & ~(1u << kAlone);
  faults.runner = Runner::kFaults;
  faults.lengths = 3;
  faults.start_s = 5;
  rows->push_back(faults);

  Row sessions{"sessions",
               "64 sessions of 16 VMs, 8 of them busy",
               {},
               {{"last_start", "start of the last", "ms", 1, kAtMost, 50},
                {"idle_cpu", "processor time of the idle together", "% of a core", 2, kAtMost, 3},
                {"jain", "Jain's index among the busy", "", 3, kAtLeast, 0.99},
                {"gpu", "of what one alone does, together", "", 3}}};
  sessions.ways = kCausewayAlone;
  sessions.runner = Runner::kSessions;
  sessions.start_s = 35;
  rows->push_back(sessions);

  Row deaths{"deaths", "daemon killed, arbiter stopped, holder of the turn killed", {}, {}};
  for (const auto& [id, name] :
       {std::pair("daemon", "daemon killed"), std::pair("arbiter", "arbiter stopped"),
        std::pair("holder", "holder of the turn killed")}) {
    deaths.figures.push_back({std::string(id) + "_times", name, "times", 0});
    deaths.figures.push_back(
        {std::string(id) + "_wait", "longest wait of the others", "ms", 1, kAtMost, kMostDeathWaitMs});
  }
  deaths.figures.push_back({"lost", "sessions lost or hanging", "", 0, kAtMost, 0});
  deaths.figures.push_back({"left", "sessions and descriptors left", "", 0, kAtMost, 0});
  deaths.ways = 1u << kSlices | kCausewayAlone;
  deaths.runner = Runner::kDeaths;
  deaths.lengths = 4;
  deaths.start_s = 8;
  rows->push_back(deaths);
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

}  // namespace

std::vector<Row> SharingRows() {
  std::vector<Row> rows;
  AddCalls(&rows);
  AddShares(&rows);
  AddChanges(&rows);
  AddCopies(&rows);
  AddPrograms(&rows);
  AddSpecial(&rows);
  return rows;
}

double ExpectedOf(const Row& row, Way way, double seconds) {
  const size_t processes = way == kAlone ? 1 : std::max<size_t>(row.loads.size(), 1);
  const double start =
      row.start_s > 0 ? row.start_s : kStartS + kStartOfEachS * static_cast<double>(processes);
  return row.lengths * seconds + start;
}

double WeightOf(const Row& row, int user) {
  const auto found = row.terms.find(user);
  constexpr char kKey[] = "weight = ";
  if (found == row.terms.end() || !found->second.starts_with(kKey)) return 100;
  return std::atof(found->second.c_str() + sizeof kKey - 1);
}

int UsersOf(const Row& row) {
  int users = 1;
  for (const Load& load : row.loads) users = std::max(users, load.user + 1);
  return users;
}

std::string GoalText(const FigureGoal& figure) {
  const std::string limit = Number(figure.limit), beside = kWayNames[figure.beside];
  switch (figure.goal) {
    case kNone:
      return {};
    case kAtMost:
      return "<= " + limit;
    case kAtLeast:
      return ">= " + limit;
    case kTimesAtMost:
      return "<= " + limit + " x " + beside;
    case kTimesAtLeast:
      return ">= " + limit + " x " + beside;
    case kOverAtMost:
      return "<= " + beside + " + " + limit;
  }
  return {};
}

}  // namespace causeway::bench::sharing
