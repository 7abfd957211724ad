// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sharing_facts {

// What was measured: rows of figures, printed as a table while the program runs and written as JSON at its end. One thread.
class Report {
 public:
  // Begins a part; its rows follow.
  void Part(const std::string& name, const std::string& question);
  // One figure. `unit` is part of the JSON; `digits` are those behind the point in the table.
  void Figure(const std::string& row, const std::string& name, double value, const std::string& unit,
              int digits = 1);
  // A row that has words instead of a figure: why something was not measured, or an answer in words.
  void Words(const std::string& row, const std::string& words);
  // The same for what was not measured; `why` is the rest of a sentence.
  void NotMeasured(const std::string& row, const std::string& why);
  int not_measured() const { return not_measured_; }
  // Writes all rows as JSON. False when the file could not be written.
  bool Write(const std::string& path) const;

 private:
  struct Row {
    std::string part, row, name, unit, words;
    double value = 0;
    bool in_words = false;
  };
  std::string part_;
  std::vector<Row> rows_;
  int not_measured_ = 0;
};

}  // namespace sharing_facts
