// SPDX-License-Identifier: Apache-2.0
// What it takes to put the memory of a process aside and to bring it back, by its size.
#include <unistd.h>

#include <string>

#include "tests/bench/sharing_facts/parts/parts.h"
#include "tests/bench/sharing_facts/parts/work.h"

namespace sharing_facts {
namespace {

constexpr std::uint32_t kPattern = 0x5ca1ab1e;

enum Value { kLock, kCheckpoint, kRestore, kUnlock, kFreed, kWrong };

// Holds `gib` GiB of a pattern, and looks at samples of it whenever the word goes up.
void Holder(Stage& stage, Cell& cell, int gib) {
  Gpu gpu;
  const Driver& driver = gpu.driver();
  const std::size_t bytes = static_cast<std::size_t>(gib) << 30;
  CUdeviceptr memory = 0;
  Check(driver, driver.cuMemAlloc(&memory, bytes), "cuMemAlloc");
  Check(driver, driver.cuMemsetD32(memory, kPattern, bytes / 4), "cuMemsetD32");
  Check(driver, driver.cuCtxSynchronize(), "cuCtxSynchronize");
  stage.Ready(cell);
  while (stage.word == 0 && !stage.Over()) usleep(1000);
  if (stage.Over()) return;
  for (std::size_t place = 0; place < bytes; place += std::size_t{64} << 20) {
    std::uint32_t found = 0;
    Check(driver, driver.cuMemcpyDtoH(&found, memory + place, sizeof(found)), "cuMemcpyDtoH");
    if (found != kPattern) ++cell.values[kWrong];
  }
  cell.count = 1;
}

template <typename Call>
void Time(const Driver& driver, std::atomic<std::uint64_t>& where, const char* what, Call call) {
  const std::uint64_t begin = NowNs();
  Check(driver, call(), what);
  where = NowNs() - begin;
}

void Operator(Stage& stage, Cell& cell, int holder) {
  Gpu gpu;
  const Driver& driver = gpu.driver();
  if (driver.cuCheckpointProcessLock == nullptr) throw Failure("this driver has no cuCheckpointProcessLock");
  CUcheckpointLockArgs lock{};
  lock.timeoutMs = 5000;
  CUcheckpointCheckpointArgs checkpoint{};
  CUcheckpointRestoreArgs restore{};
  CUcheckpointUnlockArgs unlock{};
  std::size_t before = 0, after = 0, total = 0;
  Check(driver, driver.cuMemGetInfo(&before, &total), "cuMemGetInfo");
  Time(driver, cell.values[kLock], "cuCheckpointProcessLock",
       [&] { return driver.cuCheckpointProcessLock(holder, &lock); });
  Time(driver, cell.values[kCheckpoint], "cuCheckpointProcessCheckpoint",
       [&] { return driver.cuCheckpointProcessCheckpoint(holder, &checkpoint); });
  Check(driver, driver.cuMemGetInfo(&after, &total), "cuMemGetInfo");
  cell.values[kFreed] = after > before ? after - before : 0;
  Time(driver, cell.values[kRestore], "cuCheckpointProcessRestore",
       [&] { return driver.cuCheckpointProcessRestore(holder, &restore); });
  Time(driver, cell.values[kUnlock], "cuCheckpointProcessUnlock",
       [&] { return driver.cuCheckpointProcessUnlock(holder, &unlock); });
  stage.Ready(cell);
}

// Seconds that the whole took, or 0 when it did not work.
double OneSize(Plan& plan, int gib) {
  const std::string row = std::to_string(gib) + " GiB";
  const std::uint64_t begin = NowNs();
  Crew crew(plan.Left());
  crew.Go();
  crew.Add(1, [gib](Stage& stage, Cell& cell, int) { Holder(stage, cell, gib); });
  if (!crew.AwaitReady()) {
    plan.report.NotMeasured(row, crew.Complaint());
    return 0;
  }
  const int holder = crew.pid(0);
  const int caller = crew.Add(1, [holder](Stage& stage, Cell& cell, int) { Operator(stage, cell, holder); });
  if (!crew.AwaitReady()) {
    plan.report.NotMeasured(row, crew.Complaint());
    return 0;
  }
  crew.stage().word = 1;
  while (crew.cell(0).count == 0 && crew.cell(0).state == State::kReady && plan.Left() > 0) usleep(1000);
  Cell& cell = crew.cell(caller);
  const auto ms = [&cell](Value value) { return static_cast<double>(cell.values[value]) / 1e6; };
  plan.report.Figure(row, "lock", ms(kLock), "ms");
  plan.report.Figure(row, "checkpoint", ms(kCheckpoint), "ms");
  plan.report.Figure(row, "checkpoint", gib * 1.073741824 / (ms(kCheckpoint) / 1000), "GB/s", 2);
  plan.report.Figure(row, "restore", ms(kRestore), "ms");
  plan.report.Figure(row, "restore", gib * 1.073741824 / (ms(kRestore) / 1000), "GB/s", 2);
  plan.report.Figure(row, "unlock", ms(kUnlock), "ms");
  plan.report.Figure(row, "device memory freed", static_cast<double>(cell.values[kFreed]) / (1 << 20), "MiB",
                     0);
  plan.report.Figure(row, "wrong words", static_cast<double>(crew.cell(0).values[kWrong]), "", 0);
  if (crew.cell(0).count == 0) plan.report.Words(row, "the memory was not looked at: " + crew.Complaint());
  return static_cast<double>(NowNs() - begin) / 1e9;
}

}  // namespace

void MeasureCheckpoints(Plan& plan) {
  plan.report.Part("checkpoint", "how long it takes to put a process's memory aside and to bring it back");
  double seconds = 0;
  int last = 0;
  for (int gib : {1, 4, 10, 30}) {
    if (gib > plan.most_gib) break;
    // A size whose time, by the last one's, would not fit is left out and named.
    if (last > 0 && seconds * gib / last > plan.Left()) {
      plan.report.NotMeasured(std::to_string(gib) + " GiB", "would not fit into the time of this part");
      break;
    }
    seconds = OneSize(plan, gib);
    if (seconds == 0) break;
    last = gib;
  }
}

}  // namespace sharing_facts
