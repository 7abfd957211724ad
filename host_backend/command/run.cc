// SPDX-License-Identifier: Apache-2.0
// `causeway run`: one command through a private daemon, as if it had been started directly.
#include <signal.h>
#include <sys/wait.h>

#include <cstdio>
#include <memory>

#include "host_backend/command/command.h"

namespace causeway::command {
namespace {

constexpr int kForwarded[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH};
constexpr int kOwnFailure = 125;  // as env and timeout: not to be taken for the command's own status
constexpr int kCannotExecute = 126;
constexpr int kNotFound = 127;

[[noreturn]] void ExecCommand(const RunOptions& options, const PrivateDaemon& daemon,
                              const sigset_t& signals_before) {
  sigprocmask(SIG_SETMASK, &signals_before, nullptr);
  UseGuestLibrary(daemon.guest_library_folder(), daemon.address());
  std::vector<std::string> arguments = options.command;
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  const int error = errno;
  std::fprintf(stderr, "causeway: the command %s cannot be started: %s\n", pointers[0],
               ErrnoText(error).c_str());
  _exit(error == ENOENT ? kNotFound : kCannotExecute);
}

// Waits for the command; signals meant for it arrive here too and are passed on.
int WaitAndForward(pid_t child, const sigset_t& set) {
  for (;;) {
    siginfo_t info{};
    if (sigwaitinfo(&set, &info) < 0) continue;
    if (info.si_signo != SIGCHLD) {
      // The terminal has sent its own (SI_KERNEL) to the command already: it is in the same process group.
      if (info.si_code != SI_KERNEL) kill(child, info.si_signo);
      continue;
    }
    int status = 0;
    if (waitpid(child, &status, WNOHANG) != child) continue;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
}

}  // namespace

int RunCommand(const RunOptions& options) {
  // Blocked before the daemon starts: no signal may end this process without its folder being removed.
  sigset_t set;
  sigset_t before;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int number : kForwarded) sigaddset(&set, number);
  sigprocmask(SIG_BLOCK, &set, &before);

  auto started = PrivateDaemon::Start(options.daemon);
  if (!started.ok()) {
    std::fprintf(stderr, "causeway: %s\n", started.error().c_str());
    return kOwnFailure;
  }
  const std::unique_ptr<PrivateDaemon> daemon(started.value());
  // A wish to end that came meanwhile has nobody to be passed on to.
  sigset_t ending;
  sigemptyset(&ending);
  for (const int number : {SIGINT, SIGQUIT, SIGTERM, SIGHUP}) sigaddset(&ending, number);
  const timespec at_once{};
  if (const int number = sigtimedwait(&ending, nullptr, &at_once); number > 0) return 128 + number;

  const pid_t child = fork();
  if (child < 0) {
    std::fprintf(stderr, "causeway: the command cannot be started: %s\n", ErrnoText().c_str());
    return kOwnFailure;
  }
  if (child == 0) ExecCommand(options, *daemon, before);
  const int status = WaitAndForward(child, set);
  if (options.trace_file.empty()) return status;
  const std::string problem = WriteTraces(daemon->socket(), options.trace_file);
  if (!problem.empty()) std::fprintf(stderr, "causeway: %s\n", problem.c_str());
  return status;
}

}  // namespace causeway::command
