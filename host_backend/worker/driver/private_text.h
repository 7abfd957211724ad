// SPDX-License-Identifier: Apache-2.0
// Texts of the driver's that a guest gets: descriptions of graphs, the driver's log. They name objects and
// code by their addresses in the worker, which would tell a guest where to aim.
#pragma once
#include <string>
#include <string_view>

namespace causeway::host {

// Which addresses stay in a text.
enum class Keep {
  kNothing,       // none; the driver is not asked, so its own callbacks may use this
  kDriversMemory  // those of memory that the driver knows, which the guest's pointers are; it is asked about each
};
// The text with numbers in the places of the other addresses: 1 for the first, 2 for the second, the same
// number for the same address, and as wide as the address was written. Any thread may call it.
std::string WithoutAddresses(std::string_view text, Keep keep);

}  // namespace causeway::host
