// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/takeover/next_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "host_backend/common/result.h"
#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/takeover/vault.h"

extern char** environ;

namespace causeway::daemon {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLimit{20'000};
constexpr size_t kMostText = 1000;

// Up to its end or the limit; what is too long is left out.
std::string ReadAll(int pipe) {
  std::string text;
  char buffer[512];
  const auto end = std::chrono::steady_clock::now() + kLimit;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now()).count();
    pollfd ready{pipe, POLLIN, 0};
    if (left <= 0 || poll(&ready, 1, int(left)) <= 0) return text;
    const ssize_t bytes = read(pipe, buffer, sizeof buffer);
    if (bytes <= 0) return text;
    text.append(buffer, std::min(size_t(bytes), kMostText - std::min(kMostText, text.size())));
  }
}

}  // namespace

std::string ProgramPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

std::string WhyNotStarted(const std::string& program, const std::string& configuration,
                          int32_t launcher_version) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "No pipe can be made: " + ErrnoText() + ".";
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const std::string version = std::to_string(kStateVersion);
  const std::string launcher = std::to_string(launcher_version);
  const char* arguments[] = {
      program.c_str(), "--config",           configuration.c_str(), "--check", "--state-version",
      version.c_str(), "--launcher-version", launcher.c_str(),      nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, writing.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, writing.get(), STDERR_FILENO);
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, program.c_str(), &actions, nullptr, const_cast<char**>(arguments), environ);
  posix_spawn_file_actions_destroy(&actions);
  writing.reset();
  if (error != 0) return "The installed " + program + " cannot be executed: " + ErrnoText(error) + ".";
  std::string text = ReadAll(reading.get());
  int status = 0;
  if (waitpid(pid, &status, WNOHANG) == 0) {
    // It has closed its output, or the limit is over: what still runs then has failed.
    constexpr useconds_t kMomentUs = 100'000;
    usleep(kMomentUs);
    if (waitpid(pid, &status, WNOHANG) == 0) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      text = "it did not end when it was to check its configuration";
    }
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  std::replace(text.begin(), text.end(), '\n', ' ');
  return "The installed " + program + " would not start: " + text;
}

std::string BecomeProgram(const std::string& program, char** arguments) {
  constexpr unsigned kCloexec = 1u << 2;  // CLOSE_RANGE_CLOEXEC, which older headers lack
  constexpr int kOldKernels = 65'536;
  if (syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, kCloexec) != 0) {
    for (int each = STDERR_FILENO + 1; each < kOldKernels; ++each) fcntl(each, F_SETFD, FD_CLOEXEC);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execv(program.c_str(), arguments);
  return ErrnoText();
}

}  // namespace causeway::daemon
