// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <array>

#include "tools/bench/sharing/measure/special.h"

namespace causeway::bench::sharing {
namespace {

constexpr int kOthers = 3;
constexpr int kAtOnce = 4;  // processes of the VM that misbehaves
constexpr double kFaultCalmS = 1, kKilledAfterS = 0.02, kFaultPatienceS = 20;

uint64_t NsOf(double seconds) {
  return static_cast<uint64_t>(seconds * 1e9);
}

// The processes of the VM that misbehaves, some at a time, each in a place of its own of the crew.
class Culprits {
 public:
  // So many faults, in all ways together, and so many kills; no faults: both in turns until End.
  Culprits(Crew& crew, const Ground& ground, uint32_t faults, uint32_t kills)
      : crew_(crew),
        place_(ground.PlaceOf(kOthers)),
        faults_left_(faults == 0 ? ~uint64_t{0} : faults),
        kills_left_(faults == 0 ? ~uint64_t{0} : kills) {}

  // Those that are ready are killed, and where one has ended, the next one starts. False: there were enough.
  bool Step() {
    bool any = false;
    for (Culprit& each : culprits_) {
      if (each.lives) Follow(each);
      any = each.lives || Begin(each) || any;
    }
    return any;
  }
  // Waits for those that are there.
  void End() {
    faults_left_ = kills_left_ = 0;
    for (const uint64_t end = NowNs() + NsOf(kFaultPatienceS); NowNs() < end && Step();) usleep(1000);
  }
  uint64_t kills() const { return counts_[kKilled]; }
  uint64_t faults() const {
    uint64_t all = 0;
    for (int i = 0; i < kFaults; ++i) all += counts_[size_t(i)];
    return all;
  }
  const std::string& problem() const { return problem_; }

 private:
  struct Culprit {
    int at = -1;  // in the crew
    int fault = 0;
    bool lives = false;
    uint64_t ready_ns = 0;
  };

  bool Begin(Culprit& culprit) {
    if (faults_left_ == 0 && kills_left_ == 0) return false;
    const bool kill = faults_left_ == 0 || (kills_left_ != 0 && kills_turn_);
    kills_turn_ = !kill;
    --(kill ? kills_left_ : faults_left_);
    const int fault = kill ? kKilled : static_cast<int>(faults_begun_++ % kFaults);
    const Crew::Work work = [fault](Stage& stage, Cell& cell, int) { Misbehave(stage, cell, fault); };
    if (culprit.at < 0) {
      culprit.at = crew_.Add(1, work, place_);
    } else {
      crew_.Again(culprit.at, work, place_);
    }
    culprit = {culprit.at, fault, true, 0};
    return true;
  }
  void Follow(Culprit& culprit) {
    Cell& cell = crew_.cell(culprit.at);
    const bool failed = cell.state == State::kFailed;
    if (cell.state != State::kStarting && !failed && culprit.ready_ns == 0) culprit.ready_ns = NowNs();
    if (culprit.fault == kKilled && culprit.ready_ns != 0 && NowNs() - culprit.ready_ns > NsOf(kKilledAfterS))
      crew_.Kill(culprit.at);
    if (!crew_.Reap(culprit.at, 0)) return;
    culprit.lives = false;
    const bool did = culprit.fault == kKilled ? culprit.ready_ns != 0 : cell.values[kErrorCode] != 0;
    if (did) ++counts_[size_t(culprit.fault)];
    if (did || !problem_.empty()) return;
    problem_ = std::string(kFaultNames[culprit.fault]) + " was no fault here";
    if (failed) problem_ = "a process of the VM that faults: " + std::string(cell.message.data());
  }

  Crew& crew_;
  const Place place_;
  uint64_t faults_left_, kills_left_, faults_begun_ = 0;
  bool kills_turn_ = false;
  std::array<Culprit, kAtOnce> culprits_;
  std::array<uint64_t, kFaults + 1> counts_{};
  std::string problem_;
};

int WithError(Crew& crew) {
  int failed = 0;
  for (int i = 0; i < kOthers; ++i)
    failed += crew.cell(i).values[kErrorCode] != 0 || crew.cell(i).state == State::kFailed ? 1 : 0;
  return failed;
}

}  // namespace

Outcome MeasureFaults(Measurement& measurement, const Row& row, Way way) {
  Outcome outcome;
  DaemonPlan plan;
  plan.users = kOthers + 1;
  plan.spares = kAtOnce;
  auto made = Ground::Make(way, measurement.host(), plan);
  if (!made.ok()) return outcome.error = made.error(), outcome;
  const Ground& ground = *made.value();
  const double seconds = measurement.SecondsOf(row), calm = std::min(kFaultCalmS, seconds / 4);
  const uint32_t most = way == kCauseway ? measurement.most() : 0;
  const double limit = measurement.LimitOf(row, most != 0);
  Crew crew(kStartLimitS + limit + calm + 2 * kFaultPatienceS);
  for (int user = 0; user < kOthers; ++user) {
    crew.Add(
        1, [](Stage& stage, Cell& cell, int index) { CheckWords(stage, cell, uint64_t(index) + 1); },
        ground.PlaceOf(user));
  }
  if (!crew.AwaitReady()) return outcome.error = crew.Complaint(), outcome;
  crew.Go();
  crew.Sleep(calm);
  crew.stage().word = 1;
  Culprits culprits(crew, ground, most, measurement.most_kills());
  // Where the others have got an error, there is nothing more to learn.
  for (const uint64_t end = NowNs() + NsOf(limit); NowNs() < end && WithError(crew) == 0 && culprits.Step();)
    usleep(500);
  culprits.End();
  crew.Sleep(calm);
  const int errors = WithError(crew);
  crew.Finish();
  double before = 0, longest = 0, wrong = 0;
  for (int i = 0; i < kOthers; ++i) {
    before = std::max(before, static_cast<double>(crew.cell(i).values[kLongestBeforeNs]) / 1e6);
    longest = std::max(longest, static_cast<double>(crew.cell(i).values[kLongestNs]) / 1e6);
    wrong += static_cast<double>(crew.cell(i).values[kWrongBytes]);
  }
  outcome.figures = {{"faults", static_cast<double>(culprits.faults())},
                     {"kills", static_cast<double>(culprits.kills())},
                     {"errors", errors},
                     {"wrong_bytes", wrong},
                     {"calm", before},
                     {"stall", longest}};
  if (errors == 0) outcome.error = culprits.problem();
  return outcome;
}

}  // namespace causeway::bench::sharing
