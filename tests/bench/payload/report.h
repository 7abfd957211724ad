// SPDX-License-Identifier: Apache-2.0
// The figures, as a table while the program runs and as JSON at its end.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/payload/ends.h"
#include "tests/bench/payload/sending.h"
#include "tests/bench/payload/ways.h"

namespace causeway::payload {

// Between these the median of what the values are drawn from lies, with a probability of 95 % at least, whatever its distribution is:
// of the sorted values the k-th and the k-th from the end. None for fewer than eight values.
std::optional<std::pair<double, double>> MedianInterval(std::vector<double> values);

// Of one kind of bytes: for each way the samples of all rounds, none for a way that was left out.
struct Table {
  std::string bytes;
  std::vector<Sample> samples[kWayCount];
  Notices notices[kWayCount];  // of these rounds
};

struct Run {
  std::string where;  // the machine, and between what was measured
  int mib = 0;
  std::vector<Table> tables;
  std::vector<std::pair<std::string, std::string>> left_out;  // ways, and why
};

void Print(const Table& table);
// False: the file could not be written.
bool WriteJson(const Run& run, const std::string& path);

}  // namespace causeway::payload
