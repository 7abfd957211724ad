// SPDX-License-Identifier: Apache-2.0
// What the library itself writes to stderr: one sentence each time, and a bounded number of them in a
// process. CAUSEWAY_LOG=off silences it; CAUSEWAY_LOG=debug adds what the library chose. Any thread may call
// these functions.
#pragma once
#include <string>

namespace causeway::guest {

// Says what went wrong.
void Complain(const std::string& sentence);
// The same from a thread of its own, for threads that must not wait while stderr is blocked.
void ComplainElsewhere(const std::string& sentence);
// Says what the library chose, with CAUSEWAY_LOG=debug alone.
void Explain(const std::string& sentence);

}  // namespace causeway::guest
