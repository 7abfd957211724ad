// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <vector>

#include "tools/bench/process.h"
#include "tools/bench/sharing/measure/special.h"

namespace causeway::bench::sharing {
namespace {

constexpr int kVms = 3;
constexpr double kKernelUs = 200, kStoppedS = 0.15, kSettleS = 0.1, kCalmS = 0.5, kPatienceS = 20;
constexpr int kDaemonKilled = 0, kDaemonStopped = 1, kHolderKilled = 2, kKinds = 3;
constexpr const char* kIds[kKinds] = {"daemon", "arbiter", "holder"};
constexpr size_t kLongestBeganNs = 7;  // a cell's value, beside kLongestNs
constexpr size_t kMostLate = 100;      // rounds of which the report tells when they were

// Launches a kernel and waits for it, over and over; keeps the longest round since the parent last cleared it.
void Insist(Stage& stage, Cell& cell, uint32_t rounds) {
  const Gpu gpu;
  const Driver& driver = gpu.driver();
  stage.Ready(cell);
  while (!stage.Over()) {
    const uint64_t begin = NowNs();
    Check(driver, gpu.LaunchWork(rounds), "cuLaunchKernel");
    Check(driver, driver.cuCtxSynchronize(), "cuCtxSynchronize");
    const uint64_t took = NowNs() - begin;
    if (took > cell.values[kLongestNs]) {
      cell.values[kLongestNs] = took;
      cell.values[kLongestBeganNs] = begin;
    }
    cell.Done(stage, 1);
  }
  stage.AwaitStop();
}

class Deaths {
 public:
  Deaths(Ground& ground, uint32_t rounds, double limit_s)
      : ground_(ground), crew_(kStartLimitS + limit_s), rounds_(rounds) {}

  std::string Start() {
    for (int vm = 0; vm < kVms; ++vm) crew_.Add(1, Work(), ground_.PlaceOf(vm));
    if (!crew_.AwaitReady()) return crew_.Complaint();
    crew_.Go();
    crew_.Sleep(kSettleS);
    return {};
  }
  // Does it over and over, for so long or so often. "" or what failed; the figures and details are added.
  std::string Repeat(int kind, double seconds, uint32_t most, Outcome* outcome) {
    const uint64_t end = NowNs() + static_cast<uint64_t>(seconds * 1e9);
    std::vector<double> longest_ms;  // of each time
    while (NowNs() < end && (most == 0 || longest_ms.size() < most)) {
      for (int vm = 0; vm < kVms; ++vm) crew_.cell(vm).values[kLongestNs] = 0;
      victim_ = -1;
      death_ns_ = 0;
      if (std::string text = Once(kind); !text.empty()) return text;
      const uint64_t back_ns = NowNs();
      // Each has done something since, or hangs.
      if (std::string text = AwaitProgress(); !text.empty()) return text;
      longest_ms.push_back(NoteWaits(kind, back_ns, outcome));
    }
    if (longest_ms.empty()) return "no time was left for it";
    std::sort(longest_ms.begin(), longest_ms.end());
    outcome->figures[std::string(kIds[kind]) + "_times"] = static_cast<double>(longest_ms.size());
    outcome->figures[std::string(kIds[kind]) + "_wait"] = longest_ms.back();
    Json& waits = outcome->details["waits_ms"][kIds[kind]] = Json::array();
    for (const double part : {0.5, 0.9, 0.99, 0.999, 1.0}) {
      waits.push_back(
          {part, Rounded(longest_ms[std::min(longest_ms.size() - 1, size_t(part * longest_ms.size()))])});
    }
    outcome->details["turn_waits_ms"][kIds[kind]] = LongestForTurns();
    return {};
  }
  int Lost() { return LostOf(crew_, kVms); }
  void End() { crew_.Finish(); }

 private:
  Crew::Work Work() const {
    return [rounds = rounds_](Stage& stage, Cell& cell, int) { Insist(stage, cell, rounds); };
  }
  // The longest round of those that were not killed, in milliseconds.
  double NoteWaits(int kind, uint64_t back_ns, Outcome* outcome) {
    const auto ms = [](uint64_t later, uint64_t ns) { return Rounded((double(later) - double(ns)) / 1e6); };
    Json& late = outcome->details["late"];
    if (late.is_null()) late = Json::array();
    double longest = 0;
    for (int vm = 0; vm < kVms; ++vm) {
      if (vm == victim_) continue;
      const Cell& cell = crew_.cell(vm);
      const double wait = static_cast<double>(cell.values[kLongestNs]) / 1e6;
      longest = std::max(longest, wait);
      if (wait <= kMostDeathWaitMs || late.size() >= kMostLate) continue;
      late.push_back({{"death", kIds[kind]},
                      {"wait_ms", Rounded(wait)},
                      {"began_ms", ms(cell.values[kLongestBeganNs], death_ns_)},
                      {"back_ms", ms(back_ns, death_ns_)},
                      {"turn_wait_ms", LongestForTurns()}});
    }
    return longest;
  }
  // The longest time until now for which the gate of any that lives has held back a record, in milliseconds: what the daemon says, which
  // rounds it up to a power of two in microseconds.
  double LongestForTurns() {
    double longest = 0;
    for (const Json& share : ground_.Status().value("shares", Json::array())) {
      const Json wait = share.value("wait_longest_us", Json());
      if (wait.is_number()) longest = std::max(longest, wait.get<double>() / 1e3);
    }
    return Rounded(longest);
  }
  std::string Once(int kind) {
    crew_.Sleep(std::uniform_real_distribution<double>(0.005, 0.03)(random_));
    death_ns_ = NowNs();
    if (kind == kDaemonKilled) return ground_.daemon().KillAndStart();
    if (kind == kDaemonStopped) {
      kill(ground_.daemon().pid(), SIGSTOP);
      crew_.Sleep(kStoppedS);
      kill(ground_.daemon().pid(), SIGCONT);
      return {};
    }
    victim_ = HolderOfTheTurn();
    death_ns_ = NowNs();
    crew_.Kill(victim_);
    if (!crew_.Reap(victim_, kPatienceS)) return "a process does not end by SIGKILL";
    crew_.Again(victim_, Work(), ground_.PlaceOf(victim_));
    return crew_.AwaitReady(victim_) ? "" : crew_.Complaint();
  }
  // Who has just finished a kernel.
  int HolderOfTheTurn() {
    uint64_t before[kVms];
    for (int vm = 0; vm < kVms; ++vm) before[vm] = crew_.cell(vm).count;
    for (const uint64_t end = NowNs() + 1'000'000'000; NowNs() < end;) {
      for (int vm = 0; vm < kVms; ++vm) {
        if (crew_.cell(vm).count != before[vm]) return vm;
      }
    }
    return 0;
  }
  std::string AwaitProgress() {
    uint64_t before[kVms];
    for (int vm = 0; vm < kVms; ++vm) before[vm] = crew_.cell(vm).count;
    const uint64_t end = NowNs() + static_cast<uint64_t>(kPatienceS * 1e9);
    for (int vm = 0; vm < kVms; ++vm) {
      while (crew_.cell(vm).count == before[vm]) {
        if (NowNs() > end) return "a session hangs";
        if (crew_.Reap(vm, 0)) return crew_.Complaint();
        usleep(200);
      }
    }
    return {};
  }

  Ground& ground_;
  Crew crew_;
  uint32_t rounds_;
  int victim_ = -1;  // whose waits do not count
  uint64_t death_ns_ = 0;
  std::mt19937 random_{1};
};

struct Held {
  size_t sessions = 0, descriptors = 0;
};

Held HeldBy(Ground& ground) {
  Held held;
  const pid_t daemon = ground.daemon().pid();
  held.sessions = ground.Status().value("sessions", Json::array()).size();
  std::error_code none;
  for (auto at = std::filesystem::directory_iterator("/proc/" + std::to_string(daemon) + "/fd", none);
       !none && at != std::filesystem::directory_iterator(); at.increment(none)) {
    // Images that it keeps and records of sessions that have ended outlive sessions on purpose, and are bounded.
    const std::string target = std::filesystem::read_symlink(at->path(), none).string();
    if (target.find("causeway-image") == std::string::npos &&
        target.find("causeway-flight") == std::string::npos)
      ++held.descriptors;
  }
  return held;
}

// What it holds once that is `enough`, or after so many seconds: it learns of an end a moment later.
template <class Enough>
Held Settled(Ground& ground, Enough enough, double seconds) {
  Held held = HeldBy(ground);
  for (const uint64_t end = NowNs() + static_cast<uint64_t>(seconds * 1e9); NowNs() < end && !enough(held);) {
    usleep(50'000);
    held = HeldBy(ground);
  }
  return held;
}

}  // namespace

Outcome MeasureDeaths(Measurement& measurement, const Row& row, Way way) {
  Outcome outcome;
  const LoadPlan load = measurement.PlanOf({.kernel_us = kKernelUs}, 1);
  DaemonPlan plan;
  plan.users = kVms;
  plan.outlived = true;
  auto made = Ground::Make(way, measurement.host(), plan);
  if (!made.ok()) return outcome.error = made.error(), outcome;
  Ground& ground = *made.value();
  const uint32_t most = way == kCauseway ? measurement.most() : 0;
  const double seconds = measurement.LimitOf(row, most != 0);
  Deaths deaths(ground, load.kernel.rounds, 3 * seconds + 4 * kPatienceS);
  if (outcome.error = deaths.Start(); !outcome.error.empty()) return outcome;
  if (way != kCauseway) {
    outcome.error = deaths.Repeat(kHolderKilled, seconds / kKinds, most, &outcome);
    outcome.figures["lost"] = deaths.Lost();
    return deaths.End(), outcome;
  }
  // What one kind leaves of its time is the next ones'.
  const uint64_t end = NowNs() + static_cast<uint64_t>(seconds * 1e9);
  Held before;
  for (int kind = 0; kind < kKinds && outcome.error.empty(); ++kind) {
    before = Settled(
        ground, [](const Held&) { return false; }, kCalmS);
    const double left = std::max(0.0, (static_cast<double>(end) - static_cast<double>(NowNs())) / 1e9);
    outcome.error = deaths.Repeat(kind, left / (kKinds - kind), most, &outcome);
  }
  // The same sessions live as before those that were killed with the last.
  const Held after = Settled(
      ground, [&](const Held& held) { return held.descriptors <= before.descriptors; }, kPatienceS / 4);
  outcome.figures["lost"] = deaths.Lost();
  deaths.End();
  // What is left of them goes when the daemon has seen their end.
  const Held ended = Settled(
      ground, [](const Held& held) { return held.sessions == 0; }, kPatienceS / 4);
  outcome.figures["left"] =
      static_cast<double>(ended.sessions) +
      std::max(0.0, static_cast<double>(after.descriptors) - static_cast<double>(before.descriptors));
  return outcome;
}

}  // namespace causeway::bench::sharing
