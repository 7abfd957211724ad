// SPDX-License-Identifier: Apache-2.0
// What was measured, as a table and as JSON.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/figures.h"
#include "tools/bench/process.h"

namespace causeway::bench {

struct Row {
  Figure figure;
  std::vector<double> samples[kSides];  // in pairs: the i-th of both were taken one right after the other
  std::string error[kSides];
};

struct Report {
  std::vector<Row> rows;
  std::vector<std::string> remarks;
  std::string about[kSides];  // driver version and device
  std::string library[kSides];
  uint32_t rounds = 0;
  double seconds = 0;
  bool test_only = false;  // quick, or on no real GPU
};

std::optional<double> MedianOf(const Row& row, Side side);
// Causeway's median over the native one.
std::optional<double> RatioOf(const Row& row);
// Whether the goal is met; nothing where there is none or it was not measured.
std::optional<bool> IsMet(const Row& row);
// Of the ratios of the section of calls, each turned so that less is better.
std::optional<double> GeometricMean(const Report& report);

std::string TextOf(const Report& report);
std::string JsonOf(const Report& report);

}  // namespace causeway::bench
