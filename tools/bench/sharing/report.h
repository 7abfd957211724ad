// SPDX-License-Identifier: Apache-2.0
// What was measured of each row, as a table and as JSON.
#pragma once
#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/sharing/outcome.h"
#include "tools/bench/sharing/rows.h"

namespace causeway::bench::sharing {

struct Measured {
  Row row;
  std::array<std::optional<Outcome>, kWays> outcomes;  // of the ways that were asked for
};

struct Report {
  std::vector<Way> ways;
  std::vector<Measured> rows;
  std::vector<std::string> remarks;
  std::string device, library;
  double seconds = 0;      // of each measurement
  bool test_only = false;  // quick, or on no real GPU
  std::map<std::string, std::map<std::string, double>>
      totals;  // counts of this run and of those before it: by row, by figure
};

// The row's figure that way; nothing where it was not measured.
std::optional<double> ValueOf(const Measured& measured, const std::string& figure, Way way);
// Whether Causeway's figure meets its goal; nothing where there is none, or one of both was not measured.
std::optional<bool> IsMet(const Measured& measured, const FigureGoal& figure);
// Adds up what rows count from one run to the next: faults and deaths, and what they did to others.
void AddTotals(Report* report, const Json& before);

std::string HeaderOf(const Report& report);
// The row's figures, a column for each way, and whether the goal is met.
std::string TextOf(const Report& report, const Measured& measured);
std::string SummaryOf(const Report& report);
Json JsonOf(const Report& report);

}  // namespace causeway::bench::sharing
