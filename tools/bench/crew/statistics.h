// SPDX-License-Identifier: Apache-2.0
// What is told of many samples.
#pragma once

#include <cstdint>
#include <vector>

namespace causeway::bench {

// The value below which `part` (0 to 1) of the samples lie. Sorts them. 0 for none.
double Percentile(std::vector<std::uint32_t>& samples, double part);
// 0 for none.
double Median(std::vector<double> values);
// Jain's index of the shares: 1 when all are equal, 1/n when one has everything. 0 for none.
double Jain(const std::vector<double>& shares);

}  // namespace causeway::bench
