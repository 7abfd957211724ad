// SPDX-License-Identifier: Apache-2.0
// Waiting for another thread or process by looking, without sleeping or between short sleeps. tests/tidy_test.py
// refuses every other loop of yields, and every loop that only waits and has no bound, so that a test whose
// condition never comes ends with a line that says where, and not with the suite's timeout.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace causeway::test {

// Far beyond what a busy machine takes for anything that a test waits for.
inline constexpr std::chrono::seconds kMostWaiting{60};

// Calls `wait()` until `condition()` is true. Any thread; when the time is over the whole process ends, since a
// thread that another one counts on cannot go on alone. `file` and `line` are the place to name then.
template <class Condition, class Wait>
void WaitUntil(Condition condition, Wait wait, const char* file, int line) {
  if (condition()) return;
  const auto end = std::chrono::steady_clock::now() + kMostWaiting;
  while (!condition()) {
    wait();
    if (std::chrono::steady_clock::now() < end) continue;
    std::fprintf(stderr, "%s:%d: what this waits for has not come within %lld s\n", file, line,
                 static_cast<long long>(kMostWaiting.count()));
    std::abort();
  }
}

// Yields until `condition()` is true: for what another thread does within microseconds.
template <class Condition>
void YieldUntil(Condition condition, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  WaitUntil(
      condition, [] { std::this_thread::yield(); }, file, line);
}

// Sleeps for a millisecond at a time until `condition()` is true: for what takes longer.
template <class Condition>
void SleepUntil(Condition condition, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  WaitUntil(
      condition, [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }, file, line);
}

}  // namespace causeway::test
