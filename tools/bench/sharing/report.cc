// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sharing/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

namespace causeway::bench::sharing {
namespace {

constexpr int kNameWidth = 50, kValueWidth = 12, kGoalWidth = 20;
// Figures that add up over runs; of the others of such a row the longest or the highest counts.
constexpr const char* kCounted[] = {"faults",        "kills",        "errors", "wrong_bytes", "daemon_times",
                                    "arbiter_times", "holder_times", "lost",   "left"};
constexpr const char* kLongest[] = {"stall", "daemon_wait", "arbiter_wait", "holder_wait"};

// 1,234,567.8
std::string Grouped(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, std::abs(value));
  const std::string_view number(text);
  const size_t whole = std::min(number.find('.'), number.size());
  std::string grouped = value < 0 ? "-" : "";
  for (size_t at = 0; at < number.size(); ++at) {
    if (at > 0 && at < whole && (whole - at) % 3 == 0) grouped += ',';
    grouped += number[at];
  }
  return grouped;
}

std::string Right(const std::string& text, int width) {
  return std::string(size_t(std::max(0, width - int(text.size()))), ' ') + text;
}
std::string Left(const std::string& text, int width) {
  return text + std::string(size_t(std::max(0, width - int(text.size()))), ' ');
}

bool Counts(const Row& row) {
  return row.runner == Runner::kFaults || row.runner == Runner::kDeaths;
}

Json JsonOf(const Measured& measured, const FigureGoal& figure, const std::vector<Way>& ways) {
  Json json = {{"id", figure.id}, {"name", figure.name}, {"unit", figure.unit}, {"values", Json::object()}};
  for (const Way way : ways) {
    const auto value = ValueOf(measured, figure.id, way);
    json["values"][kWayNames[way]] = value ? Json(Rounded(*value)) : Json();
  }
  if (figure.goal == Goal::kNone) return json;
  const auto met = IsMet(measured, figure);
  json["goal"] = GoalText(figure);
  json["met"] = met ? Json(*met) : Json();
  return json;
}

}  // namespace

std::optional<double> ValueOf(const Measured& measured, const std::string& figure, Way way) {
  const auto& outcome = measured.outcomes[way];
  if (!outcome) return {};
  const auto found = outcome->figures.find(figure);
  if (found == outcome->figures.end() || !std::isfinite(found->second)) return {};
  return found->second;
}

std::optional<bool> IsMet(const Measured& measured, const FigureGoal& figure) {
  const auto own = ValueOf(measured, figure.id, kCauseway);
  if (!own || figure.goal == Goal::kNone) return {};
  if (figure.goal == Goal::kAtMost) return *own <= figure.limit;
  if (figure.goal == Goal::kAtLeast) return *own >= figure.limit;
  const auto other = ValueOf(measured, figure.id, figure.beside);
  if (!other) return {};
  if (figure.goal == Goal::kOverAtMost) return *own <= *other + figure.limit;
  return figure.goal == Goal::kTimesAtMost ? *own <= *other * figure.limit : *own >= *other * figure.limit;
}

void AddTotals(Report* report, const Json& before) {
  const auto earlier = [&](const std::string& row, const char* figure) {
    const Json* at = &before;
    for (const std::string& key : {std::string("totals"), row, std::string(figure)}) {
      if (!at->is_object() || !at->contains(key)) return 0.0;
      at = &(*at)[key];
    }
    return at->is_number() ? at->get<double>() : 0.0;
  };
  for (const Row& row : SharingRows()) {
    if (!Counts(row)) continue;
    const auto measured = std::find_if(report->rows.begin(), report->rows.end(),
                                       [&](const Measured& each) { return each.row.id == row.id; });
    auto& totals = report->totals[row.id];
    const auto add = [&](const char* figure, bool sum) {
      const double own =
          measured == report->rows.end() ? 0 : ValueOf(*measured, figure, kCauseway).value_or(0);
      const bool known = std::any_of(row.figures.begin(), row.figures.end(),
                                     [&](const FigureGoal& each) { return each.id == figure; });
      const double past = earlier(row.id, figure);
      if (known) totals[figure] = sum ? past + own : std::max(past, own);
    };
    for (const char* figure : kCounted) add(figure, true);
    for (const char* figure : kLongest) add(figure, false);
  }
}

std::string HeaderOf(const Report& report) {
  std::string text = "Sharing one GPU: " + PrintableText(report.device) + "\n";
  if (report.test_only) text += "Times of this run only show that the benchmark works.\n";
  text += "\n" + std::string(kNameWidth, ' ');
  for (const Way way : report.ways) text += Right(kWayNames[way], kValueWidth);
  return text + "  goal\n";
}

std::string TextOf(const Report& report, const Measured& measured) {
  std::string text = measured.row.name + "\n";
  for (const FigureGoal& figure : measured.row.figures) {
    std::string line =
        Left("  " + figure.name + (*figure.unit == '\0' ? "" : std::string(", ") + figure.unit), kNameWidth);
    for (const Way way : report.ways) {
      const auto value = ValueOf(measured, figure.id, way);
      line += Right(value ? Grouped(*value, figure.digits) : "-", kValueWidth);
    }
    if (figure.goal != Goal::kNone) {
      const auto met = IsMet(measured, figure);
      line += "  " + Left(GoalText(figure), kGoalWidth) + (met ? *met ? "met" : "missed" : "not known");
    }
    text += line + "\n";
  }
  for (const Way way : report.ways) {
    const auto& outcome = measured.outcomes[way];
    if (outcome && !outcome->error.empty())
      text += std::string("  ") + kWayNames[way] + ": " + PrintableText(outcome->error) + "\n";
  }
  return text;
}

std::string SummaryOf(const Report& report) {
  int met = 0, missed = 0, unknown = 0;
  for (const Measured& measured : report.rows) {
    for (const FigureGoal& figure : measured.row.figures) {
      if (figure.goal == Goal::kNone) continue;
      const auto is_met = IsMet(measured, figure);
      ++(is_met ? *is_met ? met : missed : unknown);
    }
  }
  std::string text = std::to_string(met) + " goals met, " + std::to_string(missed) + " missed, " +
                     std::to_string(unknown) + " not known.\n";
  for (const auto& [row, totals] : report.totals) {
    const bool any =
        std::any_of(totals.begin(), totals.end(), [](const auto& each) { return each.second != 0; });
    if (!any) continue;
    text += row + ", with the runs before:";
    for (const auto& [figure, value] : totals)
      text += " " + figure + " " + Grouped(value, value == std::floor(value) ? 0 : 1) + ";";
    text.back() = '\n';
  }
  for (const std::string& remark : report.remarks) text += PrintableText(remark) + "\n";
  return text;
}

Json JsonOf(const Report& report) {
  Json json = {{"sharing", 1},
               {"causeway", CAUSEWAY_VERSION},
               {"device", report.device},
               {"library", report.library},
               {"seconds", report.seconds},
               {"test_only", report.test_only},
               {"ways", Json::array()},
               {"rows", Json::array()},
               {"totals", Json::object()},
               {"remarks", report.remarks}};
  for (const Way way : report.ways) json["ways"].push_back(kWayNames[way]);
  for (const Measured& measured : report.rows) {
    Json row = {{"id", measured.row.id},     {"name", measured.row.name}, {"figures", Json::array()},
                {"seconds", Json::object()}, {"errors", Json::object()},  {"details", Json::object()}};
    for (const FigureGoal& figure : measured.row.figures)
      row["figures"].push_back(JsonOf(measured, figure, report.ways));
    for (const Way way : report.ways) {
      const auto& outcome = measured.outcomes[way];
      if (!outcome) continue;
      row["seconds"][kWayNames[way]] = RoundedTo(outcome->seconds, 1);
      if (!outcome->error.empty()) row["errors"][kWayNames[way]] = outcome->error;
      if (!outcome->details.is_null()) row["details"][kWayNames[way]] = outcome->details;
    }
    json["rows"].push_back(std::move(row));
  }
  for (const auto& [row, totals] : report.totals) {
    for (const auto& [figure, value] : totals) json["totals"][row][figure] = Rounded(value);
  }
  return json;
}

}  // namespace causeway::bench::sharing
