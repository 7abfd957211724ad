// SPDX-License-Identifier: Apache-2.0
// What an opcode is called, for logs and traces.
#pragma once
#include <cstdint>

namespace causeway {

// The driver's or NVML's function, or words for a message of the session's own. Any number is allowed.
const char* OpName(uint16_t op);

}  // namespace causeway
