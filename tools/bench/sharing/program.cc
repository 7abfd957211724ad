// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sharing/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "host_backend/command/command.h"
#include "host_backend/common/unique_fd.h"
#include "tools/bench/crew/statistics.h"

namespace causeway::bench::sharing {
namespace {

constexpr double kReadyLimitS = 60;
constexpr int kUnits = 11;

// The script in a process, which dies with this one; what it writes to standard error is read like the rest.
class Script {
 public:
  explicit Script(const std::string& mode) {
    const std::string& text = Text();
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) throw Failure("no pipe for python3.");
    const UniqueFd input(to[0]), output(from[1]);
    input_.reset(to[1]);
    output_.reset(from[0]);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) throw Failure("fork failed.");
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || chdir("/") != 0) _exit(127);
    setenv("USER", "causeway-bench", 1);  // PyTorch asks for a name, and this user may have none
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    dup2(from[1], STDERR_FILENO);
    execlp("python3", "python3", "-c", text.c_str(), mode.c_str(), nullptr);
    dprintf(STDOUT_FILENO, "python3 cannot be started: %s\n", ErrnoText().c_str());
    _exit(127);
  }
  ~Script() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Script(const Script&) = delete;
  Script& operator=(const Script&) = delete;

  // As text, because the file may be where this process's user cannot read it.
  static const std::string& Text() {
    static const std::string text = [] {
      std::stringstream whole;
      whole << std::ifstream(command::ProgramFolder() + "/causeway-bench-torch").rdbuf();
      return whole.str();
    }();
    return text;
  }

  // Of what Python says of an exception, the line that names it tells most; the stack of an earlier call may follow it.
  void AwaitReady() {
    std::string last = "it says nothing";
    bool is_named = false;
    for (const uint64_t end = NowNs() + static_cast<uint64_t>(kReadyLimitS * 1e9); NowNs() < end;) {
      const auto line = Read(200);
      if (line == "ready") return;
      if (!line && ended_) break;
      if (!line || line->empty()) continue;
      const bool names = line->front() != ' ' && line->find("Error: ") != std::string::npos;
      if (names || !is_named) last = *line;
      is_named |= names;
    }
    throw Failure("PyTorch does not come to work: " + last);
  }
  void Tell(const std::string& line) {
    const std::string text = line + "\n";
    if (write(input_.get(), text.data(), text.size()) < 0) ended_ = true;
  }
  // A line, or nothing for so long.
  std::optional<std::string> Read(int limit_ms) {
    for (;;) {
      if (const size_t end = pending_.find('\n'); end != std::string::npos) {
        std::string line = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        return line;
      }
      pollfd ready{output_.get(), POLLIN, 0};
      if (ended_ || poll(&ready, 1, limit_ms) <= 0) return {};
      char bytes[4096];
      const ssize_t length = read(output_.get(), bytes, sizeof bytes);
      if (length <= 0) ended_ = true;
      if (length > 0) pending_.append(bytes, static_cast<size_t>(length));
    }
  }
  bool ended() const { return ended_; }

 private:
  pid_t pid_ = -1;
  UniqueFd input_, output_;
  std::string pending_;
  bool ended_ = false;
};

uint64_t Nanoseconds(const std::string& line) {
  return std::strtoull(line.c_str(), nullptr, 10);
}

}  // namespace

void ReadProgram() {
  if (Script::Text().empty())
    throw Failure("there is no causeway-bench-torch beside causeway-bench that can be read.");
}

void RunProgram(Stage& stage, Cell& cell, const LoadPlan& plan) {
  signal(SIGPIPE, SIG_IGN);
  Script script(plan.load.script);
  script.AwaitReady();
  stage.Ready(cell);
  script.Tell(std::to_string(plan.request_gap_us));
  while (!stage.Over()) {
    const auto line = script.Read(20);
    if (const uint64_t took = line ? Nanoseconds(*line) : 0; took != 0) {
      cell.Sample(took);
      cell.Done(stage, 1);
    }
    if (script.ended()) throw Failure("PyTorch has ended: " + line.value_or("it says nothing"));
  }
  cell.state = State::kEnded;
  stage.AwaitStop();
}

double ProgramUnitMs(const std::string& mode) {
  signal(SIGPIPE, SIG_IGN);
  Script script(mode);
  script.AwaitReady();
  script.Tell("0");
  std::vector<double> took;
  for (const uint64_t end = NowNs() + static_cast<uint64_t>(kReadyLimitS * 1e9);
       NowNs() < end && took.size() < kUnits && !script.ended();) {
    const auto line = script.Read(200);
    if (const uint64_t each = line ? Nanoseconds(*line) : 0; each != 0)
      took.push_back(static_cast<double>(each) / 1e6);
  }
  if (took.size() < kUnits) throw Failure("PyTorch does not go on working");
  return Median(took);
}

}  // namespace causeway::bench::sharing
