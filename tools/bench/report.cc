// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "host_backend/common/json.h"
#include "tools/bench/crew/statistics.h"

namespace causeway::bench {
namespace {

std::string Number(double value) {
  char text[32];
  const char* format = value >= 100   ? "%.0f"
                       : value >= 10  ? "%.1f"
                       : value >= 1   ? "%.2f"
                       : value >= 0.1 ? "%.3f"
                                      : "%.2g";
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

// Ratios of the pairs.
std::vector<double> Ratios(const Row& row) {
  std::vector<double> ratios;
  const size_t pairs = std::min(row.samples[kNative].size(), row.samples[kGuest].size());
  for (size_t i = 0; i < pairs; ++i) {
    if (row.samples[kNative][i] > 0) ratios.push_back(row.samples[kGuest][i] / row.samples[kNative][i]);
  }
  return ratios;
}

std::string ValueCell(const Row& row, Side side) {
  const auto median = MedianOf(row, side);
  if (!row.error[side].empty()) return row.error[side].starts_with("error ") ? row.error[side] : "failed";
  return median ? Number(*median) : "-";
}

// Half of the distance between the least and the most, in percent of the median.
std::string SpreadCell(const Row& row, Side side) {
  const auto& samples = row.samples[side];
  const auto median = MedianOf(row, side);
  if (!median || samples.size() < 2 || *median == 0) return "";
  const auto [least, most] = std::minmax_element(samples.begin(), samples.end());
  char text[32];
  std::snprintf(text, sizeof(text), "%.0f%%", (*most - *least) / *median * 50);
  return text;
}

void Append(std::string& text, const char* format, ...) __attribute__((format(printf, 2, 3)));
void Append(std::string& text, const char* format, ...) {
  char line[400];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  text += line;
}

const char* Heading(Section section) {
  switch (section) {
    case Section::kCalls:
      return "calls";
    case Section::kData:
      return "data";
    case Section::kManaged:
      return "calls beside managed memory";
    case Section::kOther:
      return "other calls";
    case Section::kCurve:
      return "copies of other sizes";
    case Section::kCrowded:
      return "processors, processes";
  }
  return "";
}

void AppendSection(std::string& text, const Report& report, Section section) {
  bool any = false;
  for (const Row& row : report.rows) {
    if (row.figure.section != section) continue;
    if (!any) {
      Append(text, "%s%-40s %-5s %9s %5s %9s %5s %9s %-16s %-18s %s\n", text.empty() ? "" : "\n",
             Heading(section), "unit", "native", "+-", "causeway", "+-", "ratio", "  from .. to", "goal",
             "met");
    }
    any = true;
    const auto ratio = RatioOf(row);
    const auto ratios = Ratios(row);
    std::string range;
    if (ratio && ratios.size() > 1) {
      range = Number(*std::min_element(ratios.begin(), ratios.end())) + " .. " +
              Number(*std::max_element(ratios.begin(), ratios.end()));
    }
    const auto met = IsMet(row);
    Append(text, "%-40s %-5s %9s %5s %9s %5s %9s   %-14s %-18s %s\n", row.figure.name.c_str(),
           row.figure.unit, row.figure.guest_only ? "" : ValueCell(row, kNative).c_str(),
           SpreadCell(row, kNative).c_str(), ValueCell(row, kGuest).c_str(), SpreadCell(row, kGuest).c_str(),
           ratio ? Number(*ratio).c_str() : "-", range.c_str(), GoalText(row.figure).c_str(),
           met ? (*met ? "yes" : "NO") : "-");
  }
}

}  // namespace

std::optional<double> MedianOf(const Row& row, Side side) {
  if (row.samples[side].empty() || !row.error[side].empty()) return {};
  return Median(row.samples[side]);
}

std::optional<double> RatioOf(const Row& row) {
  const auto native = MedianOf(row, kNative), guest = MedianOf(row, kGuest);
  if (!native || !guest || *native <= 0) return {};
  return *guest / *native;
}

std::optional<bool> IsMet(const Row& row) {
  const auto native = MedianOf(row, kNative), guest = MedianOf(row, kGuest), ratio = RatioOf(row);
  const double limit = row.figure.limit;
  switch (row.figure.goal) {
    case Goal::kNone:
      return {};
    case Goal::kRatioAtMost:
      return ratio ? std::optional(*ratio <= limit) : std::nullopt;
    case Goal::kRatioAtLeast:
      return ratio ? std::optional(*ratio >= limit) : std::nullopt;
    case Goal::kAtMost:
      return guest ? std::optional(*guest <= limit) : std::nullopt;
    case Goal::kAtLeast:
      return guest ? std::optional(*guest >= limit) : std::nullopt;
    case Goal::kDifferenceAtMost:
      return guest && native ? std::optional(*guest - *native <= limit) : std::nullopt;
  }
  return {};
}

std::optional<double> GeometricMean(const Report& report) {
  double sum = 0;
  int count = 0;
  for (const Row& row : report.rows) {
    const auto ratio = RatioOf(row);
    if (row.figure.section != Section::kCalls || row.figure.guest_only || !ratio || *ratio <= 0) continue;
    sum += row.figure.better == Better::kLess ? std::log(*ratio) : -std::log(*ratio);
    ++count;
  }
  if (count == 0) return {};
  return std::exp(sum / count);
}

std::string TextOf(const Report& report) {
  std::string text;
  for (const Section section : {Section::kCalls, Section::kData, Section::kManaged, Section::kOther,
                                Section::kCurve, Section::kCrowded})
    AppendSection(text, report, section);
  int met = 0, measured = 0, goals = 0;
  for (const Row& row : report.rows) {
    const auto is_met = IsMet(row);
    goals += row.figure.goal != Goal::kNone ? 1 : 0;
    measured += is_met ? 1 : 0;
    met += is_met && *is_met ? 1 : 0;
  }
  text += "\n";
  const auto mean = GeometricMean(report);
  if (mean)
    Append(text,
           "geometric mean of causeway/native over the calls: %.3f (goal: below 1; rates are turned round)\n",
           *mean);
  Append(text, "goals: %d of %d met, %d not measured\n", met, goals, goals - measured);
  Append(text,
         "Medians of %u rounds, native and causeway in turns, in %.0f s. +-: half of the distance between "
         "least and "
         "most.\nus, ms, %%, MiB: less is better; GB/s (10^9 bytes), M/s (10^6), 1/s: more is better.\n",
         report.rounds, report.seconds);
  if (!report.about[kNative].empty()) Append(text, "native: driver %s\n", report.about[kNative].c_str());
  for (const std::string& remark : report.remarks) text += remark + "\n";
  if (report.test_only)
    text +=
        "These figures only show that the benchmark works: few repetitions, or a driver that is no GPU's.\n";
  return text;
}

std::string JsonOf(const Report& report) {
  constexpr const char* kSections[] = {"calls", "data", "managed", "other", "curve", "crowded"};
  Json json = {{"version", CAUSEWAY_VERSION},
               {"rounds", report.rounds},
               {"seconds", Rounded(report.seconds)},
               {"test_only", report.test_only}};
  for (const Side side : {kNative, kGuest}) {
    json[std::string(kSideNames[side]) + "_library"] = report.library[side];
    json[std::string(kSideNames[side]) + "_driver"] = report.about[side];
  }
  Json& figures = json["figures"] = Json::array();
  for (const Row& row : report.rows) {
    Json figure = {{"id", row.figure.id},
                   {"name", row.figure.name},
                   {"unit", row.figure.unit},
                   {"section", kSections[int(row.figure.section)]},
                   {"more_is_better", row.figure.better == Better::kMore}};
    for (const Side side : {kNative, kGuest}) {
      Json& samples = figure[kSideNames[side]] = Json::array();
      for (const double sample : row.samples[side]) samples.push_back(Rounded(sample));
      if (!row.error[side].empty()) figure[std::string(kSideNames[side]) + "_error"] = row.error[side];
    }
    if (const auto ratio = RatioOf(row)) figure["ratio"] = Rounded(*ratio);
    if (row.figure.goal != Goal::kNone) figure["goal"] = GoalText(row.figure);
    if (const auto met = IsMet(row)) figure["met"] = *met;
    figures.push_back(std::move(figure));
  }
  if (const auto mean = GeometricMean(report)) json["geometric_mean"] = Rounded(*mean);
  json["remarks"] = report.remarks;
  return JsonText(json);
}

}  // namespace causeway::bench
