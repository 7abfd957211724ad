// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/crew/statistics.h"

#include <algorithm>
#include <cstddef>

namespace causeway::bench {

double Percentile(std::vector<std::uint32_t>& samples, double part) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  return samples[std::min(samples.size() - 1,
                          static_cast<std::size_t>(part * static_cast<double>(samples.size())))];
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double Jain(const std::vector<double>& shares) {
  double sum = 0, squares = 0;
  for (double share : shares) sum += share, squares += share * share;
  return squares > 0 ? sum * sum / (static_cast<double>(shares.size()) * squares) : 0;
}

}  // namespace causeway::bench
