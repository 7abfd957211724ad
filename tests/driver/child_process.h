// SPDX-License-Identifier: Apache-2.0
// Tests that end their process or break its device run in a process of their own: this program again, started
// with one of its disabled tests, whose exit code is its answer.
//
//   TEST(Child, DISABLED_Crash) { ...; exit(3); }
//   TEST(FaultTest, Crash) { EXPECT_EQ(RunChild("Child.DISABLED_Crash"), 3); }
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

namespace causeway::driver_test {

inline constexpr int kChildTimedOut = 1000;

// The exit code, 128 + the signal that ended it, or kChildTimedOut. What it prints on stderr is shown.
inline int RunChild(const std::string& test, std::chrono::seconds patience = std::chrono::seconds(60)) {
  const std::string filter = "--gtest_filter=" + test;
  const pid_t child = fork();
  if (child < 0) return kChildTimedOut + 1;
  if (child == 0) {
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    execl("/proc/self/exe", "child", filter.c_str(), "--gtest_also_run_disabled_tests", nullptr);
    _exit(99);
  }
  const auto end = std::chrono::steady_clock::now() + patience;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return kChildTimedOut;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace causeway::driver_test
