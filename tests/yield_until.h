// SPDX-License-Identifier: Apache-2.0
// Waiting for another thread without sleeping. tests/tidy_test.py refuses every other loop of yields, so that
// a test whose condition never comes ends with a line that says where, and not with the suite's timeout.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace causeway::test {

// Far beyond what a busy machine takes for anything that a test waits for.
inline constexpr std::chrono::seconds kMostYielding{60};

// Yields until `condition()` is true. Any thread; when the time is over the whole process ends, since a
// thread that another one counts on cannot go on alone. `file` and `line` are the caller's.
template <class Condition>
void YieldUntil(Condition condition, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (condition()) return;
  const auto end = std::chrono::steady_clock::now() + kMostYielding;
  while (!condition()) {
    std::this_thread::yield();
    if (std::chrono::steady_clock::now() < end) continue;
    std::fprintf(stderr, "%s:%d: what this waits for has not come within %lld s\n", file, line,
                 static_cast<long long>(kMostYielding.count()));
    std::abort();
  }
}

}  // namespace causeway::test
