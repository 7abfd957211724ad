// SPDX-License-Identifier: Apache-2.0
// Texts of the driver's that a guest gets: descriptions of graphs, the driver's log. They name objects and
// code by their addresses in the worker, which would tell a guest where to aim.
#pragma once
#include <string>
#include <string_view>

namespace causeway::host {

// The text with numbers in the places of addresses that are the worker's: 1 for the first, 2 for the second,
// the same for the same address, and as wide as it was written. With kDriversMemory addresses of memory that
// the driver knows, which the guest's pointers are, stay; it is asked about each.
enum class Keep {
  kNothing,       // does not ask the driver: for use in the driver's own callbacks
  kDriversMemory  // see above
};
std::string WithoutAddresses(std::string_view text, Keep keep);

}  // namespace causeway::host
