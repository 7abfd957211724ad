// SPDX-License-Identifier: Apache-2.0
// The driver's log: what it writes comes with the reply of the call that made it write, and goes to the
// program's functions in the thread that called, as natively.
#pragma once
#include <cstddef>
#include <cstdint>

namespace causeway::guest {

// One line of the driver's log, CUlogLevel `level`.
void DeliverLog(uint32_t level, const char* text, size_t bytes);

}  // namespace causeway::guest
