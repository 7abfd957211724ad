// SPDX-License-Identifier: Apache-2.0
// What a fault of one process does to three others that launch and wait, with and without MPS.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>

#include "tests/bench/sharing_facts/parts/parts.h"
#include "tests/bench/sharing_facts/parts/work.h"
#include "tools/bench/crew/mps_server.h"

namespace sharing_facts {
namespace {

constexpr int kOthers = 3;

enum Value { kCode, kAtNs, kStallBefore, kStallAfter, kWrong, kCall };

struct Way {
  const char* name;
  const char* kernel;  // nullptr: the process is killed while a kernel runs
};
constexpr Way kWays[] = {{"bad address", "BadAddress"},
                         {"trap", "Trap"},
                         {"assert", "Assert"},
                         {"misaligned address", "Misaligned"},
                         {"shared memory overrun", "SharedOverflow"},
                         {"stack overrun", "Stack"},
                         {"SIGKILL during a kernel", nullptr}};

// Launches and waits; keeps the longest round before and after the word is set, and the first error.
void Innocent(Stage& stage, Cell& cell) {
  Gpu gpu;
  const Driver& driver = gpu.driver();
  stage.Ready(cell);
  std::uint64_t launched = 0;
  while (!stage.Over()) {
    const std::uint64_t begin = NowNs();
    CUresult code = gpu.LaunchCount();
    if (code == CUDA_SUCCESS) code = driver.cuCtxSynchronize();
    const std::uint64_t passed = NowNs() - begin;
    const std::uint64_t fault = stage.word;
    auto& longest = cell.values[fault != 0 && begin + passed > fault ? kStallAfter : kStallBefore];
    longest = std::max<std::uint64_t>(longest, passed);
    if (code != CUDA_SUCCESS) {
      cell.values[kCode] = code;
      cell.values[kAtNs] = NowNs() - fault;
      return;
    }
    ++launched;
    cell.count.fetch_add(1, std::memory_order_relaxed);
  }
  std::uint32_t counted = 0;
  Check(driver, driver.cuMemcpyDtoH(&counted, gpu.sink(), sizeof(counted)), "cuMemcpyDtoH");
  cell.values[kWrong] = counted == static_cast<std::uint32_t>(launched) ? 0 : 1;
}

void Guilty(Stage& stage, Cell& cell, const Way& way) {
  Gpu gpu;
  const Driver& driver = gpu.driver();
  const std::uint32_t long_rounds = gpu.RoundsFor(200'000);
  CUfunction kernel = way.kernel == nullptr ? nullptr : gpu.Kernel(way.kernel);
  stage.Ready(cell);
  usleep(300'000);
  stage.word = NowNs();
  const CUresult launch = kernel == nullptr ? gpu.LaunchWork(long_rounds) : gpu.LaunchOn(kernel);
  if (kernel == nullptr) {
    usleep(50'000);
    cell.values[kAtNs] = NowNs() - stage.word;
    kill(getpid(), SIGKILL);
  }
  const CUresult code = launch != CUDA_SUCCESS ? launch : driver.cuCtxSynchronize();
  cell.values[kCode] = code;
  cell.values[kAtNs] = NowNs() - stage.word;
}

// Milliseconds from now until a process of its own can start, launch and wait; negative when none could within `limit_s`.
double UntilServed(const Environment& environment, double limit_s) {
  const std::uint64_t begin = NowNs();
  while (static_cast<double>(NowNs() - begin) < limit_s * 1e9) {
    Crew crew(5);
    crew.Add(
        1,
        [](Stage& stage, Cell& cell, int) {
          Gpu gpu;
          Check(gpu.driver(), gpu.LaunchCount(), "cuLaunchKernel");
          Check(gpu.driver(), gpu.driver().cuCtxSynchronize(), "cuCtxSynchronize");
          stage.Ready(cell);
        },
        environment);
    if (crew.AwaitReady()) return static_cast<double>(NowNs() - begin) / 1e6;
    usleep(20'000);
  }
  return -1;
}

void OneFault(Plan& plan, const Way& way, const Environment& environment, bool mps) {
  const std::string row = std::string(way.name) + (mps ? ", with MPS" : ", without MPS");
  Crew crew(12);
  crew.Add(
      kOthers, [](Stage& stage, Cell& cell, int) { Innocent(stage, cell); }, environment);
  const int guilty = crew.Add(
      1, [&way](Stage& stage, Cell& cell, int) { Guilty(stage, cell, way); }, environment);
  if (!crew.AwaitReady()) return plan.report.NotMeasured(row, crew.Complaint());
  crew.Go();
  crew.Reap(guilty, 4);
  crew.Sleep(0.4);
  // A process that SIGKILL ended is no failure here, so Finish's answer is not asked.
  const double served_ms = mps ? UntilServed(environment, 6) : 0;
  crew.Finish();
  double before = 0, after = 0, wrong = 0, failed = 0;
  std::uint64_t code = 0;
  for (int i = 0; i < kOthers; ++i) {
    Cell& cell = crew.cell(i);
    before = std::max(before, static_cast<double>(cell.values[kStallBefore]) / 1e6);
    after = std::max(after, static_cast<double>(cell.values[kStallAfter]) / 1e6);
    wrong += static_cast<double>(cell.values[kWrong]);
    if (cell.values[kCode] != 0 || cell.state == State::kFailed) ++failed, code = cell.values[kCode];
  }
  plan.report.Figure(row, "error of the guilty", static_cast<double>(crew.cell(guilty).values[kCode]), "code",
                     0);
  plan.report.Figure(row, "until it was told", static_cast<double>(crew.cell(guilty).values[kAtNs]) / 1e6,
                     "ms");
  plan.report.Figure(row, "others that got an error", failed, "of 3", 0);
  if (failed > 0) plan.report.Figure(row, "error of the others", static_cast<double>(code), "code", 0);
  plan.report.Figure(row, "others with a wrong result", wrong, "of 3", 0);
  plan.report.Figure(row, "longest round before", before, "ms", 2);
  plan.report.Figure(row, "longest round after", after, "ms", 2);
  if (mps) plan.report.Figure(row, "until a new client works", served_ms, "ms", 0);
}

}  // namespace

void MeasureFaults(Plan& plan) {
  plan.report.Part("faults", "what a fault of one process does to the others");
  for (const Way& way : kWays) {
    if (plan.Left() <= 0) return plan.report.NotMeasured("the rest", "the part's time was over");
    OneFault(plan, way, {}, false);
  }
  std::unique_ptr<MpsServer> server;
  try {
    server = std::make_unique<MpsServer>();
  } catch (const Failure& failure) {
    return plan.report.NotMeasured("with MPS", failure.what());
  }
  for (const Way& way : kWays) {
    if (plan.Left() <= 0) return plan.report.NotMeasured("the rest", "the part's time was over");
    OneFault(plan, way, server->environment(), true);
  }
}

}  // namespace sharing_facts
