// SPDX-License-Identifier: Apache-2.0
// The texts that programs pass: names of kernels and variables, files that do not exist, images.
#pragma once
#include <iterator>

#include "tests/differential/kernels.h"
#include "tests/differential/rows.h"

namespace causeway::differential {

// 0 to kKernelCount - 1 are the kernels' names.
inline constexpr const char* kTexts[] = {"fill",
                                         "add",
                                         "saw",
                                         "idle",
                                         "table",
                                         "fixed",
                                         "nothing",
                                         "",
                                         "/nowhere/at/all",
                                         "no image, and no PTX either",
                                         kKernels};
inline constexpr uint32_t kFirstSymbol = 0, kSymbols = 8, kFile = 8, kWrongImage = 9, kImage = 10;
// From here on: the name of a driver function, without what follows its version.
inline constexpr uint32_t kEntryPoints = 1000;

inline const char* TextOf(uint64_t number) {
  if (number < kEntryPoints) return kTexts[number % std::size(kTexts)];
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Row& row : AllRows()) {
      const std::string name = row.name;
      all.push_back(name);
      all.push_back(name.substr(0, name.find('_')));
    }
    return all;
  }();
  return names[(number - kEntryPoints) % names.size()].c_str();
}

}  // namespace causeway::differential
