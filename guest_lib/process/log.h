// SPDX-License-Identifier: Apache-2.0
// What the library itself writes to stderr: one line each time, "causeway: " and the sentence, which the
// caller passes without a newline. A process writes 20 such lines at most and drops the rest, so that a loop
// does not fill the program's output. CAUSEWAY_LOG=off silences all; CAUSEWAY_LOG=debug adds what the library
// chose. Any thread may call these functions, also with locks held: they take none.
#pragma once
#include <string>

namespace causeway::guest {

// Says what went wrong. Returns when the line is written, so the thread waits while stderr is blocked.
void Complain(const std::string& sentence);
// Has a new thread say it and returns at once, for threads that must not wait while stderr is blocked. If no
// thread can be started, the sentence is lost.
void ComplainElsewhere(const std::string& sentence);
// Says what the library chose, with CAUSEWAY_LOG=debug alone. Counts as one of the lines, and waits likewise.
void Explain(const std::string& sentence);

}  // namespace causeway::guest
