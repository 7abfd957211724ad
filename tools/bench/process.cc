// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "host_backend/command/ask/ask_daemon.h"

namespace causeway::bench {
namespace {

double ClockMs(clockid_t clock) {
  timespec now{};
  return clock_gettime(clock, &now) == 0 ? double(now.tv_sec) * 1e3 + double(now.tv_nsec) / 1e6 : 0;
}

[[noreturn]] void ExecProbe(const ProbePlan& plan, int input, int output, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  if (plan.side == kNative) unsetenv("CAUSEWAY");
  if (plan.side == kGuest && !plan.address.empty()) setenv("CAUSEWAY", plan.address.c_str(), 1);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  const char* options[] = {plan.program.c_str(), plan.library.c_str(), nullptr, nullptr, nullptr};
  int count = 2;
  if (plan.quick) options[count++] = "--quick";
  if (plan.startup) options[count++] = "--startup";
  execv(plan.program.c_str(), const_cast<char**>(options));
  std::fprintf(stderr, "causeway: the probe %s cannot be started: %s\n", plan.program.c_str(),
               ErrnoText().c_str());
  _exit(127);
}

// These processes and all that descend from them.
std::vector<pid_t> FamilyOf(std::vector<pid_t> family) {
  std::multimap<pid_t, pid_t> children;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", none)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(") ");  // a name may have anything in it
    // Behind it stand one letter and the parent.
    if (name_end != std::string::npos) children.emplace(std::atoi(text.c_str() + name_end + 4), pid);
  }
  for (size_t i = 0; i < family.size(); ++i) {
    const auto [begin, end] = children.equal_range(family[i]);
    for (auto child = begin; child != end; ++child) family.push_back(child->second);
  }
  return family;
}

std::string HowEnded(int status) {
  if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  return "ended with exit status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

std::map<pid_t, pid_t> WorkersOf(const std::string& socket) {
  std::map<pid_t, pid_t> workers;
  const auto status = command::QueryStatus(socket);
  if (!status.ok()) return workers;
  for (const std::string& session : command::JsonObjects(status.value(), "sessions")) {
    const auto number = [&](const char* key) {
      return pid_t(std::strtol(command::StatusValue(session, "", key).c_str(), nullptr, 10));
    };
    workers[number("pid")] = number("worker_pid");
  }
  return workers;
}

std::vector<int> ProcessorPair(int number, int all) {
  constexpr int kEach = 3;  // two, and one for what else there is to do
  cpu_set_t mine;
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) return {};
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &mine)) processors.push_back(i);
  }
  // Threads of one core have numbers that follow each other, or that differ by half of all: pairs side by side share no core either way. Many
  // interrupts come to the very first ones.
  const size_t first = 2 * size_t(number) + 2;
  if (processors.size() < std::max(size_t(kEach * all), first + 2)) return {};
  return {processors[first], processors[first + 1]};
}

bool BindProcess(pid_t pid, const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int each : processors) CPU_SET(each, &set);
  std::error_code none;
  bool bound = !processors.empty();
  auto thread = std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", none);
  bound = bound && !none;
  for (; !none && thread != std::filesystem::directory_iterator(); thread.increment(none)) {
    const pid_t number = std::atoi(thread->path().filename().c_str());
    bound = (sched_setaffinity(number, sizeof set, &set) == 0 || errno == ESRCH) && bound;
  }
  return bound;
}

double NowMs() {
  return ClockMs(CLOCK_MONOTONIC);
}

double ProcessCpuMs(pid_t pid) {
  clockid_t clock{};
  return clock_getcpuclockid(pid, &clock) == 0 ? ClockMs(clock) : 0;
}

double ResidentMib(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  uint64_t all = 0, resident = 0;
  file >> all >> resident;
  return double(resident) * double(sysconf(_SC_PAGESIZE)) / double(1u << 20);
}

FamilyCpu::FamilyCpu(std::vector<pid_t> roots) : roots_(std::move(roots)) {
  for (const pid_t pid : FamilyOf(roots_)) before_ms_[pid] = ProcessCpuMs(pid);
}

double FamilyCpu::UsedMs() const {
  double sum = 0;
  for (const pid_t pid : FamilyOf(roots_)) {
    const auto before = before_ms_.find(pid);
    sum += ProcessCpuMs(pid) - (before != before_ms_.end() ? before->second : 0);
  }
  return sum;
}

Result<std::unique_ptr<ProbeProcess>> ProbeProcess::Start(const ProbePlan& plan) {
  int to_probe[2], from_probe[2];
  if (pipe2(to_probe, O_CLOEXEC) != 0) return Error{"No pipe for the probe: " + ErrnoText() + "."};
  const UniqueFd input(to_probe[0]);
  std::unique_ptr<ProbeProcess> probe(new ProbeProcess());
  probe->input_.reset(to_probe[1]);
  if (pipe2(from_probe, O_CLOEXEC) != 0) return Error{"No pipe for the probe: " + ErrnoText() + "."};
  probe->output_.reset(from_probe[0]);
  const UniqueFd output(from_probe[1]);
  probe->name_ = std::string("The probe on the ") + kSideNames[plan.side] + " library " + plan.library;
  probe->started_ms_ = NowMs();
  const pid_t self = getpid();
  probe->pid_ = fork();
  if (probe->pid_ < 0) return Error{"The probe cannot be started: " + ErrnoText() + "."};
  if (probe->pid_ == 0) ExecProbe(plan, input.get(), output.get(), self);
  return probe;
}

ProbeProcess::~ProbeProcess() {
  if (pid_ <= 0) return;
  // The end of its input ends it; a session that closes in order is what its worker expects.
  input_.reset();
  constexpr int kPatienceMs = 2000, kPollMs = 5;
  for (int waited = 0; waited < kPatienceMs; waited += kPollMs) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) return;
    usleep(kPollMs * 1000);
  }
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

Result<std::string> ProbeProcess::ReadLine(int limit_ms) {
  const double end = NowMs() + limit_ms;
  size_t newline = 0;
  while ((newline = pending_.find('\n')) == std::string::npos) {
    pollfd ready{output_.get(), POLLIN, 0};
    const int left = std::max(0, int(end - NowMs()));
    if (poll(&ready, 1, left) == 0 && left == 0) {
      kill(pid_, SIGKILL);
      return Error{name_ + " did not answer within " + std::to_string(limit_ms / 1000) + " s."};
    }
    char buffer[4096];
    const ssize_t bytes = ready.revents != 0 ? read(output_.get(), buffer, sizeof(buffer)) : -1;
    if (bytes > 0) pending_.append(buffer, size_t(bytes));
    if (bytes != 0) continue;
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return Error{name_ + " " + HowEnded(status) + "."};
  }
  std::string line = pending_.substr(0, newline);
  pending_.erase(0, newline + 1);
  return line;
}

Result<double> ProbeProcess::AwaitReady(int limit_ms) {
  auto line = ReadLine(limit_ms);
  const double ms = NowMs() - started_ms_;
  if (!line.ok()) return Error{line.error()};
  if (!line.value().starts_with("ready")) return Error{name_ + " said \"" + line.value() + "\"."};
  about_ = line.value().substr(std::min<size_t>(line.value().size(), 6));
  return ms;
}

void ProbeProcess::Tell(const std::string& line) {
  const std::string text = line + "\n";
  // A probe that is gone is noticed when its answer is read (SIGPIPE is ignored by then).
  if (write(input_.get(), text.data(), text.size()) < 0) return;
}

Result<double> ProbeProcess::Finish(int limit_ms) {
  auto line = ReadLine(limit_ms);
  if (!line.ok()) return Error{line.error()};
  char* rest = nullptr;
  const double value = std::strtod(line.value().c_str(), &rest);
  const long error = std::strtol(rest, nullptr, 10);
  if (error != 0) return Error{"error " + std::to_string(error)};
  return value;
}

Result<double> ProbeProcess::Measure(const std::string& id, int limit_ms) {
  Begin(id);
  return Finish(limit_ms);
}

}  // namespace causeway::bench
