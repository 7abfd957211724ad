// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sharing/sharing_run.h"

#include <fnmatch.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "tools/bench/exit_status.h"
#include "tools/bench/plot.h"
#include "tools/bench/sharing/measure/measure.h"
#include "tools/bench/sharing/report.h"

namespace causeway::bench {
namespace sharing {
namespace {

constexpr uint64_t kRegionMib = 2048, kQuickRegionMib = 64;  // of each process

bool Matches(const Row& row, const std::string& pattern) {
  for (const std::string& text : {row.id, row.name}) {
    if (text.find(pattern) != std::string::npos || fnmatch(pattern.c_str(), text.c_str(), 0) == 0)
      return true;
  }
  return false;
}

// Of a pattern that is a row's id, that row alone.
Result<std::vector<Row>> ChosenRows(const std::vector<std::string>& patterns) {
  const std::vector<Row> all = SharingRows();
  std::vector<bool> chosen(all.size(), false);
  for (size_t i = 0; i < all.size() && patterns.empty(); ++i) chosen[i] = !all[i].only_named;
  for (const std::string& pattern : patterns) {
    const auto exact =
        std::find_if(all.begin(), all.end(), [&](const Row& row) { return row.id == pattern; });
    bool any = false;
    for (size_t i = 0; i < all.size(); ++i) {
      const bool is = exact != all.end() ? all[i].id == pattern : Matches(all[i], pattern);
      chosen[i] = chosen[i] || is;
      any = any || is;
    }
    if (!any) return Error{"No row is called " + pattern + "; --sharing --list shows them all."};
  }
  std::vector<Row> rows;
  for (size_t i = 0; i < all.size(); ++i) {
    if (chosen[i]) rows.push_back(all[i]);
  }
  return rows;
}

Result<std::vector<Way>> ChosenWays(const std::vector<std::string>& names,
                                    std::vector<std::string>* remarks) {
  std::vector<Way> ways;
  for (int way = 0; way < kWays; ++way) {
    const bool named = std::find(names.begin(), names.end(), kWayNames[way]) != names.end();
    if (!names.empty() && !named) continue;
    if (way == kMps && !HasMps()) {
      const std::string text = "MPS is not measured: there is no nvidia-cuda-mps-control in PATH.";
      if (named) return Error{text};
      remarks->push_back(text);
      continue;
    }
    ways.push_back(static_cast<Way>(way));
  }
  return ways;
}

bool IsMeasured(const Row& row, Way way) {
  return (row.ways & 1u << way) != 0;
}

int List(const std::vector<Row>& rows, const std::vector<Way>& ways, double seconds) {
  double all = 0;
  for (const Row& row : rows) {
    double own = 0;
    std::string names;
    for (const Way way : ways) {
      if (!IsMeasured(row, way)) continue;
      names += std::string(names.empty() ? "" : ",") + kWayNames[way];
      own += ExpectedOf(row, way, seconds);
    }
    all += own;
    std::printf("%-18s %-58s %5.1f s  %s\n", row.id.c_str(), row.name.c_str(), own, names.c_str());
    for (const FigureGoal& figure : row.figures) {
      if (figure.goal != Goal::kNone)
        std::printf("  %-55s %s\n", figure.name.c_str(), GoalText(figure).c_str());
    }
  }
  std::printf("About %.0f s for all of these.\n", all);
  return 0;
}

// The counts of earlier runs, where the file is there and one of these reports.
Result<Json> ReadBefore(const std::string& name) {
  if (name.empty() || access(name.c_str(), F_OK) != 0) return Json::object();
  std::stringstream text;
  text << std::ifstream(name).rdbuf();
  Json before = Json::parse(text.str(), nullptr, false);
  if (before.is_object() && before.contains("sharing")) return before;
  return Error{name + " is there and no report of `causeway bench --sharing`; name another file."};
}

// One row in all ways, printed. False: something could not be measured.
bool MeasureRow(Measurement& measurement, Report* report, const Row& row, uint64_t end_ns) {
  Measured measured{row, {}};
  bool complete = true;
  for (const Way way : report->ways) {
    if (!IsMeasured(row, way)) continue;
    Outcome outcome;
    if (NowNs() + static_cast<uint64_t>(ExpectedOf(row, way, report->seconds) * 1e9) > end_ns) {
      outcome.error = "left out, the time was over (--limit)";
    } else {
      const auto& alone = measured.outcomes[kAlone];
      outcome = sharing::Measure(measurement, row, way, alone ? *alone : Outcome{});
    }
    complete = complete && outcome.error.empty();
    measured.outcomes[way] = std::move(outcome);
  }
  std::printf("%s", TextOf(*report, measured).c_str());
  std::fflush(stdout);
  report->rows.push_back(std::move(measured));
  return complete;
}

bool Draw(const std::string& json, const std::string& folder) {
  bool drawn = true;
  for (const char* kind : {"shares", "latency"})
    drawn = Plot(json, folder + "/sharing-" + kind + ".svg", std::string("--") + kind) && drawn;
  return drawn;
}

int Measure(const BenchOptions& options, const SharingOptions& wanted, std::vector<Row> rows, Report report) {
  Host host{NativeLibrary(options), options.daemon, options.quick};
  host.daemon.region_mib = options.quick ? kQuickRegionMib : kRegionMib;
  const auto before = ReadBefore(options.json_file);
  if (!before.ok()) return Fail(before.error());
  if (!wanted.pictures.empty() && options.json_file.empty() && !CanPlot()) return kBenchFailed;
  const uint64_t end_ns = NowNs() + uint64_t{options.limit_s} * 1'000'000'000;
  const uint32_t kills = wanted.kills != 0 ? wanted.kills : wanted.faults;
  Measurement measurement(host, wanted.seconds, wanted.faults, kills, end_ns);
  const auto device = measurement.Identify();
  if (!device.ok()) return Fail(device.error());
  report.device = device.value();
  report.library = host.native;
  report.seconds = wanted.seconds;
  report.test_only = options.quick || !options.daemon.driver.empty();
  std::printf("%s", HeaderOf(report).c_str());
  bool complete = true;
  for (const Row& row : rows) complete = MeasureRow(measurement, &report, row, end_ns) && complete;
  AddTotals(&report, before.value());
  std::printf("%s", SummaryOf(report).c_str());
  const std::string json = JsonText(JsonOf(report)) + "\n";
  if (std::string text = WriteFile(options.json_file, json); !text.empty()) return Fail(text);
  if (!wanted.pictures.empty()) complete = Draw(json, wanted.pictures) && complete;
  return complete ? 0 : kBenchIncomplete;
}

int MeasureAll(const BenchOptions& options, const SharingOptions& wanted) {
  signal(SIGPIPE, SIG_IGN);
  Report report;
  auto rows = ChosenRows(wanted.rows);
  if (!rows.ok()) return Fail(rows.error());
  auto ways = ChosenWays(wanted.ways, &report.remarks);
  if (!ways.ok()) return Fail(ways.error());
  report.ways = ways.value();
  if (options.list) return List(rows.value(), report.ways, wanted.seconds);
  if (geteuid() != 0) return Fail("The processes of --sharing are those of several users: run it as root.");
  return Measure(options, wanted, std::move(rows.value()), std::move(report));
}

}  // namespace
}  // namespace sharing

int MeasureSharing(const BenchOptions& options, const SharingOptions& wanted) {
  return sharing::MeasureAll(options, wanted);
}

}  // namespace causeway::bench
