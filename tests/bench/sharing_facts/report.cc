// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/sharing_facts/report.h"

#include <cstdio>
#include <fstream>

#include <nlohmann/json.hpp>

namespace sharing_facts {

void Report::Part(const std::string& name, const std::string& question) {
  part_ = name;
  std::printf("\n%s: %s\n", name.c_str(), question.c_str());
  std::fflush(stdout);
}

void Report::Figure(const std::string& row, const std::string& name, double value, const std::string& unit,
                    int digits) {
  rows_.push_back({part_, row, name, unit, {}, value, false});
  std::printf("  %-58s %-26s %14.*f %s\n", row.c_str(), name.c_str(), digits, value, unit.c_str());
  std::fflush(stdout);
}

void Report::Words(const std::string& row, const std::string& words) {
  rows_.push_back({part_, row, {}, {}, words, 0, true});
  std::printf("  %-58s %s\n", row.c_str(), words.c_str());
  std::fflush(stdout);
}

void Report::NotMeasured(const std::string& row, const std::string& why) {
  ++not_measured_;
  Words(row, "not measured: " + why);
}

bool Report::Write(const std::string& path) const {
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& row : rows_) {
    if (row.in_words) {
      rows.push_back({{"part", row.part}, {"row", row.row}, {"words", row.words}});
    } else {
      rows.push_back({{"part", row.part},
                      {"row", row.row},
                      {"figure", row.name},
                      {"value", row.value},
                      {"unit", row.unit}});
    }
  }
  std::ofstream file(path);
  file << rows.dump(1) << "\n";
  return file.good();
}

}  // namespace sharing_facts
