// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/run.h"

#include <fnmatch.h>
#include <signal.h>

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tools/bench/crowd.h"

namespace causeway::bench {
namespace {

constexpr int kFigureLimitMs = 60'000;
constexpr int kIdleLimitMs = 60'000;  // until idle sessions are there
constexpr int kCalmLimitMs = 20'000;  // until the daemon has nothing to do for them
constexpr size_t kIdleAtOnce = 8;     // that start together
constexpr size_t kIdleRoom = 4;       // that end where no more could be started

// By name or id, as a pattern or as a part of it; `patterns` are separated by |.
bool IsWanted(const Figure& figure, std::string_view patterns) {
  for (size_t begin = 0; begin <= patterns.size();) {
    const size_t end = std::min(patterns.find('|', begin), patterns.size());
    const std::string pattern(patterns.substr(begin, end - begin));
    for (const std::string& text : {figure.name, figure.id}) {
      if (text.find(pattern) != std::string::npos || fnmatch(pattern.c_str(), text.c_str(), 0) == 0)
        return true;
    }
    begin = end + 1;
  }
  return false;
}

uint32_t Processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? uint32_t(CPU_COUNT(&set)) : 1;
}

}  // namespace

std::string NativeLibrary(const BenchOptions& options) {
  if (!options.native.empty()) return options.native;
  return options.daemon.driver.empty() ? "libcuda.so.1" : options.daemon.driver;
}

std::string BenchRun::FindLibraries() {
  program_ = command::ProgramFolder() + "/causeway-bench-probe";
  if (!options_.guest_only) report_.library[kNative] = NativeLibrary(options_);
  report_.test_only = options_.quick || !options_.daemon.driver.empty();
  if (options_.guest_only) {
    auto folder = command::FindGuestLibrary(options_.daemon.guest_library);
    if (!folder.ok()) return folder.error();
    report_.library[kGuest] = folder.value() + "/libcuda.so.1";
    return {};
  }
  command::PrivateDaemonOptions daemon = options_.daemon;
  daemon.spares_follow_demand = false;
  daemon.max_sessions = options_.idle_sessions + 16;
  auto started = command::PrivateDaemon::Start(daemon);
  if (!started.ok()) return started.error();
  daemon_.reset(started.value());
  report_.library[kGuest] = daemon_->guest_library_folder() + "/libcuda.so.1";
  address_ = daemon_->address();
  return {};
}

// They take a minute a round, and stop the machine for everybody else.
bool BenchRun::MayCrowd(const Figure& figure) const {
  return !options_.only.empty() && !options_.guest_only && HasProcessors(figure, Processors());
}

std::string BenchRun::Prepare() {
  signal(SIGPIPE, SIG_IGN);
  for (const Figure& figure : Figures(!options_.plot_file.empty(), options_.quick)) {
    if (figure.runner == Runner::kCrowd && !MayCrowd(figure)) continue;
    if (IsWanted(figure, options_.only)) report_.rows.push_back({figure, {}, {}});
  }
  if (report_.rows.empty()) return "No figure is called " + options_.only + "; --list shows them all.";
  if (std::string text = FindLibraries(); !text.empty()) return text;
  for (const Side side : {kNative, kGuest}) {
    if (side == kNative && options_.guest_only) continue;
    const auto probe = Probe(side, 0);
    if (!probe.ok()) return probe.error();
    report_.about[side] = probe.value()->about();
  }
  return {};
}

ProbePlan BenchRun::PlanFor(Side side) const {
  return {program_, report_.library[side], side, address_, options_.quick, false};
}

std::string BenchRun::WaitForSpare() const {
  return daemon_ != nullptr ? daemon_->WaitForSpares(1, kReadyLimitMs) : "";
}

void BenchRun::NameWorker(ProbeProcess& probe) const {
  if (daemon_ == nullptr) return;
  const auto workers = WorkersOf(daemon_->socket());
  if (const auto found = workers.find(probe.pid()); found != workers.end())
    probe.Tell("worker " + std::to_string(found->second));
}

Result<ProbeProcess*> BenchRun::Probe(Side side, int index) {
  auto& place = probes_[side][index];
  if (place != nullptr) return place.get();
  if (std::string text = WaitForSpare(); !text.empty()) return Error{text};
  auto started = ProbeProcess::Start(PlanFor(side));
  if (!started.ok()) return Error{started.error()};
  const auto ready = started.value()->AwaitReady(kReadyLimitMs);
  if (!ready.ok()) return Error{ready.error()};
  place = std::move(started.value());
  if (side == kGuest) NameWorker(*place);
  // The next spare starts now and would be in the way.
  if (std::string text = WaitForSpare(); !text.empty()) return Error{text};
  return place.get();
}

bool BenchRun::Measures(const Row& row, Side side) const {
  if (!row.error[side].empty()) return false;  // it will not do better
  if (side == kNative && (options_.guest_only || row.figure.guest_only)) return false;
  const bool needs_host = row.figure.runner == Runner::kIdle || row.figure.runner == Runner::kResident ||
                          row.figure.id.starts_with("cpu:");
  return !needs_host || daemon_ != nullptr;
}

Result<double> BenchRun::SampleStartup(Side side) {
  if (std::string text = WaitForSpare(); !text.empty()) return Error{text};
  ProbePlan plan = PlanFor(side);
  plan.startup = true;
  auto started = ProbeProcess::Start(plan);
  if (!started.ok()) return Error{started.error()};
  auto ready = started.value()->AwaitReady(kReadyLimitMs);
  started.value().reset();
  if (std::string text = WaitForSpare(); !text.empty()) return Error{text};
  return ready;
}

// A machine with more work than processors may let nobody finish anything in the time that is enough
// elsewhere.
Result<double> BenchRun::SamplePair(const Row& row, Side side) {
  const double length_ms = options_.quick ? 40 : 400;
  auto sampled = SamplePairFor(length_ms, row, side);
  if (!sampled.ok()) sampled = SamplePairFor(10 * length_ms, row, side);
  return sampled;
}

// Both probes of a side work during the same span of time.
Result<double> BenchRun::SamplePairFor(double length_ms, const Row& row, Side side) {
  const bool share = row.figure.id == "share";
  ProbeProcess* probes[2];
  for (int i = 0; i < 2; ++i) {
    const auto probe = Probe(side, i);
    if (!probe.ok()) return Error{probe.error()};
    probes[i] = probe.value();
    const uint64_t bytes = options_.quick || share || i == 1 ? uint64_t{16} << 20 : uint64_t{1024} << 20;
    const auto made = probes[i]->Measure("make:" + std::to_string(bytes), kFigureLimitMs);
    if (!made.ok()) return made;
  }
  const std::string span =
      ":" + std::to_string(uint64_t((NowMs() + 20) * 1000)) + ":" + std::to_string(uint64_t(length_ms));
  probes[0]->Begin((share ? "share" : "stream") + span);
  probes[1]->Begin((share ? "share" : "beside") + span);
  const auto first = probes[0]->Finish(kFigureLimitMs), second = probes[1]->Finish(kFigureLimitMs);
  if (!first.ok()) return first;
  if (!second.ok() || !share) return second;
  const double sum = first.value() + second.value();
  if (sum <= 0) return Error{"neither session finished a copy"};
  return std::min(first.value(), second.value()) / sum;
}

// Of an idle session's worker, or of a process that has done the same natively.
Result<double> BenchRun::SampleResident(Side side) {
  if (std::string text = WaitForSpare(); !text.empty()) return Error{text};
  const auto probe = ProbeProcess::Start(PlanFor(side));
  if (!probe.ok()) return Error{probe.error()};
  if (const auto ready = probe.value()->AwaitReady(kReadyLimitMs); !ready.ok()) return ready;
  pid_t pid = probe.value()->pid();
  if (side == kGuest) pid = WorkersOf(daemon_->socket())[pid];
  const double mib = ResidentMib(pid);
  if (mib <= 0) return Error{"the process that was to be looked at has ended"};
  return mib;
}

Result<BenchRun::Sessions> BenchRun::StartIdleSessions() {
  const uint32_t wanted = options_.idle_sessions;
  const double end = NowMs() + kIdleLimitMs;
  Sessions sessions;
  std::string refusal;
  while (sessions.size() < wanted && refusal.empty()) {
    const size_t group = std::min<size_t>(kIdleAtOnce, wanted - sessions.size());
    Sessions fresh;
    for (size_t i = 0; i < group && refusal.empty(); ++i) {
      auto started = ProbeProcess::Start(PlanFor(kGuest));
      if (!started.ok()) refusal = started.error();
      if (started.ok()) fresh.push_back(std::move(started.value()));
    }
    for (auto& session : fresh) {
      const auto ready = session->AwaitReady(std::max(1, int(end - NowMs())));
      if (!ready.ok()) refusal = ready.error();
      if (ready.ok()) sessions.push_back(std::move(session));
    }
  }
  if (refusal.empty()) return sessions;
  // A device that is full to the brim would be measured trying to start spare workers.
  const size_t count = sessions.size(), kept = count - std::min<size_t>(kIdleRoom, count);
  for (size_t i = kept; i < count; ++i) sessions[i]->AskToEnd();
  sessions.resize(kept);
  if (sessions.empty()) return Error{"no idle session could be started: " + refusal};
  report_.remarks.push_back("Only " + std::to_string(count) + " of " + std::to_string(wanted) +
                            " idle sessions could be started (" + refusal +
                            "); their CPU was measured with " + std::to_string(kept) + " and scaled.");
  return sessions;
}

Result<double> BenchRun::SampleIdle() {
  // Each holds a context, of which a GPU has so many.
  for (auto& side : probes_) {
    for (auto& probe : side) probe.reset();
  }
  auto started = StartIdleSessions();
  if (!started.ok()) return Error{started.error()};
  Sessions& sessions = started.value();
  // The next spare is done starting, which after a refusal takes the daemon some seconds to try.
  for (const double end = NowMs() + kCalmLimitMs; NowMs() < end && !WaitForSpare().empty();) usleep(100'000);
  usleep(500'000);  // what they do after their first kernel is over
  const auto workers = WorkersOf(daemon_->socket());
  std::vector<pid_t> busy = {daemon_->pid()};
  for (const auto& session : sessions) {
    busy.push_back(session->pid());
    if (const auto worker = workers.find(session->pid()); worker != workers.end())
      busy.push_back(worker->second);
  }
  const auto cpu_ms = [&] {
    double sum = 0;
    for (const pid_t pid : busy) sum += ProcessCpuMs(pid);
    return sum;
  };
  const double before = cpu_ms(), start = NowMs();
  usleep(options_.quick ? 500'000 : 3'000'000);
  const double percent =
      (cpu_ms() - before) / (NowMs() - start) * 100 * double(kIdleSessions) / double(sessions.size());
  for (const auto& session : sessions) session->AskToEnd();
  return percent;
}

// Steps and their processor time come of one sample: the figure that is asked for first keeps the other's value. A machine with more
// work than processors is given more time, as for a pair.
Result<double> BenchRun::SampleCrowded(const Row& row, Side side) {
  auto& kept = crowd_cpu_us_[side];
  if (const auto found = kept.extract(row.figure.id); !found.empty()) return found.mapped();
  const double length_ms = options_.quick ? 100 : 1000;
  CrowdSample seen;
  for (const double length : {length_ms, 10 * length_ms}) {
    const auto sample = SampleCrowd(row.figure, PlanFor(side), options_.daemon, length);
    if (!sample.ok()) return Error{sample.error()};
    seen = sample.value();
    if (seen.cpu_us > 0) break;
  }
  if (seen.cpu_us <= 0) return Error{"no process finished a step"};
  if (row.figure.better == Better::kLess) return seen.cpu_us;
  kept[CrowdCpuId(row.figure.id)] = seen.cpu_us;
  return seen.steps_per_s;
}

bool HasManagedMemory(const Figure& figure) {
  return figure.id.starts_with("managed_") || figure.section == Section::kManaged;
}

Result<double> BenchRun::Sample(const Row& row, Side side) {
  switch (row.figure.runner) {
    case Runner::kStartup:
      return SampleStartup(side);
    case Runner::kPair:
      return SamplePair(row, side);
    case Runner::kResident:
      return SampleResident(side);
    case Runner::kIdle:
      return SampleIdle();
    case Runner::kCrowd:
      return SampleCrowded(row, side);
    case Runner::kProbe:
      break;
  }
  const auto probe = Probe(side, HasManagedMemory(row.figure) ? kManagedProbe : 0);
  if (!probe.ok()) return Error{probe.error()};
  return probe.value()->Measure(row.figure.id, kFigureLimitMs);
}

void BenchRun::Progress(uint32_t round, const Row& row) const {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[Kround %u of %u: %s", round + 1, options_.rounds, row.figure.name.c_str());
}

void BenchRun::MeasureRow(Row& row, uint32_t round) {
  Progress(round, row);
  // The order alternates, so that neither side always meets the warmer machine.
  for (int turn = 0; turn < kSides; ++turn) {
    const Side side = (round + uint32_t(turn)) % 2 == 0 ? kNative : kGuest;
    if (!Measures(row, side)) continue;
    const auto sample = Sample(row, side);
    if (sample.ok()) {
      row.samples[side].push_back(sample.value());
      continue;
    }
    row.error[side] = sample.error();
    report_.remarks.push_back(row.figure.name + ", " + kSideNames[side] + ": " + sample.error());
    for (auto& probe : probes_[side]) probe.reset();  // an error may be one that stays
  }
}

// Idle sessions come last: a hundred of them that end are in the way of whatever follows, and a
// device that is full of them has no room for it.
void BenchRun::Measure() {
  const double start = NowMs();
  const auto is_idle = [](const Row& row) { return row.figure.runner == Runner::kIdle; };
  const bool any_idle = std::any_of(report_.rows.begin(), report_.rows.end(), is_idle);
  const bool any_other = !std::all_of(report_.rows.begin(), report_.rows.end(), is_idle);
  const double kept_s = any_idle && any_other ? std::min(kIdleLimitMs / 1000.0, options_.limit_s / 4.0) : 0;
  bool late = false;
  for (uint32_t round = 0; round < options_.rounds && any_other && !late; ++round) {
    for (Row& row : report_.rows) {
      late = late || NowMs() - start > 1000 * (options_.limit_s - kept_s);
      if (!late && !is_idle(row)) MeasureRow(row, round);
    }
    report_.rounds = round + 1;
    std::fprintf(stderr, "%sround %u of %u %s after %.0f s\n", isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "",
                 round + 1, options_.rounds, late ? "ended" : "done", (NowMs() - start) / 1000);
  }
  for (Row& row : report_.rows) {
    if (is_idle(row)) MeasureRow(row, 0);
  }
  report_.seconds = (NowMs() - start) / 1000;
  if (isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "\r\033[K");
  if (late)
    report_.remarks.push_back("Time was up in round " + std::to_string(report_.rounds) + " (--limit).");
}

bool BenchRun::complete() const {
  return std::all_of(report_.rows.begin(), report_.rows.end(), [&](const Row& row) {
    for (const Side side : {kNative, kGuest}) {
      if (!row.error[side].empty() || (Measures(row, side) && row.samples[side].empty())) return false;
    }
    return true;
  });
}

}  // namespace causeway::bench
