// SPDX-License-Identifier: Apache-2.0
// The system calls that a profile of the sandbox can name, and what of each is checked. A call that is not
// here cannot be allowed by any profile.
#pragma once
#include <string>
#include <string_view>

namespace causeway::sandbox {

inline constexpr int kNoArgument = -1;

struct SystemCall {
  const char* name;
  int number;                // of this machine
  int judged = kNoArgument;  // the argument whose value a profile states: an ioctl's request, prctl's option
  // Arguments that are descriptors, as bits: never the region's (sandbox/filter.h).
  unsigned descriptors = 0;
};

// Null: no profile may name it.
const SystemCall* FindSystemCall(std::string_view name);
const SystemCall* FindSystemCall(int number);

// The name of any system call, or "call NUMBER", for messages.
std::string NameOfSystemCall(int number);

}  // namespace causeway::sandbox
