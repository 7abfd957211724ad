// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/crowd.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

namespace causeway::bench {
namespace {

constexpr int kFinishLimitMs = 60'000;
constexpr double kHeadStartMs = 50;  // until all have been asked
// The last look at the processor time comes before the end, by this part of the time.
constexpr double kMarginPart = 0.05;

struct Crowd {
  std::string kind;
  uint32_t processors = 0, processes = 0;
};

Crowd CrowdOf(const Figure& figure) {
  const size_t first = figure.id.find(':'), second = figure.id.find(':', first + 1);
  return {figure.id.substr(0, first), uint32_t(std::atoi(figure.id.c_str() + first + 1)),
          uint32_t(std::atoi(figure.id.c_str() + second + 1))};
}

// Binds the calling thread to so many of its processors, and gives it all back. What it starts meanwhile stays bound.
class Bound {
 public:
  explicit Bound(uint32_t processors) {
    if (sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    cpu_set_t some;
    CPU_ZERO(&some);
    for (size_t i = 0; i < CPU_SETSIZE && uint32_t(CPU_COUNT(&some)) < processors; ++i) {
      if (CPU_ISSET(i, &before_)) CPU_SET(i, &some);
    }
    good_ = sched_setaffinity(0, sizeof some, &some) == 0;
  }
  ~Bound() {
    if (good_) sched_setaffinity(0, sizeof before_, &before_);
  }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;
  bool good() const { return good_; }

 private:
  cpu_set_t before_{};
  bool good_ = false;
};

void SleepUntil(double ms) {
  if (const double left = ms - NowMs(); left > 0) usleep(useconds_t(left * 1000));
}

// Milliseconds of processor time a second, from `begin_ms` to shortly before `end_ms`; 0 where this thread ran too late.
double CpuRate(const std::vector<pid_t>& processes, double begin_ms, double end_ms) {
  SleepUntil(begin_ms);
  const FamilyCpu cpu(processes);
  const double from = NowMs();
  SleepUntil(end_ms - kMarginPart * (end_ms - begin_ms));
  const double used = cpu.UsedMs();
  // Later than at the end nobody works any more.
  const double seconds = (std::min(NowMs(), end_ms) - from) / 1000;
  return seconds > 0 ? used / seconds : 0;
}

}  // namespace

bool HasProcessors(const Figure& figure, uint32_t processors) {
  return CrowdOf(figure).processors <= processors;
}

Result<CrowdSample> SampleCrowd(const Figure& figure, ProbePlan plan,
                                const command::PrivateDaemonOptions& options, double length_ms) {
  const Crowd crowd = CrowdOf(figure);
  std::optional<Bound> bound(crowd.processors);
  if (!bound->good()) return Error{"the kernel lets no thread be bound to processors: " + ErrnoText()};
  std::unique_ptr<command::PrivateDaemon> daemon;
  if (plan.side == kGuest) {
    auto started = command::PrivateDaemon::Start(options);
    if (!started.ok()) return Error{started.error()};
    daemon.reset(started.value());
    plan.address = daemon->address();
  }
  std::vector<std::unique_ptr<ProbeProcess>> probes;
  for (uint32_t i = 0; i < crowd.processes; ++i) {
    auto probe = ProbeProcess::Start(plan);
    if (!probe.ok()) return Error{probe.error()};
    probes.push_back(std::move(probe.value()));
  }
  for (const auto& probe : probes) {
    if (const auto ready = probe->AwaitReady(kReadyLimitMs); !ready.ok()) return Error{ready.error()};
  }
  if (daemon != nullptr) {
    if (std::string text = daemon->WaitForSpares(1, kReadyLimitMs); !text.empty()) return Error{text};
  }
  bound.reset();
  std::vector<pid_t> processes;
  if (daemon != nullptr) processes.push_back(daemon->pid());
  for (const auto& probe : probes) processes.push_back(probe->pid());
  const double begin_ms = NowMs() + kHeadStartMs;
  const std::string span =
      ":" + std::to_string(uint64_t(begin_ms * 1000)) + ":" + std::to_string(uint64_t(length_ms));
  for (const auto& probe : probes) probe->Begin(crowd.kind + span);
  const double cpu_rate = CpuRate(processes, begin_ms, begin_ms + length_ms);
  double steps = 0;
  for (const auto& probe : probes) {
    const auto made = probe->Finish(kFinishLimitMs);
    if (!made.ok()) return Error{made.error()};
    steps += made.value();
  }
  for (const auto& probe : probes) probe->AskToEnd();
  const double steps_per_s = steps / (length_ms / 1000);
  return CrowdSample{steps_per_s, steps_per_s > 0 ? cpu_rate * 1000 / steps_per_s : 0};
}

}  // namespace causeway::bench
