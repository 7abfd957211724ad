// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sharing/measurement.h"

#include <algorithm>
#include <cstdio>

#include "tools/bench/sharing/program.h"

namespace causeway::bench::sharing {
namespace {

constexpr uint64_t kQuickBytes = 1u << 20;
constexpr double kLoad = 0.2;  // of the GPU's time, by requests of inference

constexpr double kToEndS = 15;  // what a row needs beyond its time to end its processes

}  // namespace

Result<std::string> Measurement::Identify() const {
  Crew crew(kStartLimitS);
  crew.Add(
      1,
      [](Stage& stage, Cell& cell, int) {
        const Gpu gpu;
        int version = 0;
        char name[128] = "";
        gpu.driver().cuDriverGetVersion(&version);
        gpu.driver().cuDeviceGetName(name, sizeof name, 0);
        std::snprintf(cell.message.data(), cell.message.size(), "%s, CUDA %d.%d of the driver", name,
                      version / 1000, version % 1000 / 10);
        stage.Ready(cell);
      },
      NativePlace(host_));
  if (!crew.AwaitReady()) return Error{"No GPU can be used natively: " + crew.Complaint() + "."};
  return std::string(crew.cell(0).message.data());
}

double Measurement::LimitOf(const Row& row, bool counts) const {
  const double own = SecondsOf(row),
               left = (static_cast<double>(end_ns_) - static_cast<double>(NowNs())) / 1e9;
  return counts && most_ != 0 ? std::max(own, left - kToEndS) : own;
}

const Kernel& Measurement::KernelOf(double us) {
  const auto [entry, is_new] = kernels_.try_emplace(us);
  if (!is_new) return entry->second;
  // On a GPU that is none, a round takes as long as it takes.
  if (us <= 0 || host_.quick) return entry->second = {us <= 0 ? 0u : 1u, us};
  Crew crew(kStartLimitS);
  crew.Add(
      1,
      [us](Stage& stage, Cell& cell, int) {
        const Gpu gpu;
        const Kernel kernel = Calibrate(gpu, us);
        cell.values[0] = kernel.rounds;
        cell.values[1] = static_cast<uint64_t>(kernel.us * 1e6);
        stage.Ready(cell);
      },
      NativePlace(host_));
  if (!crew.AwaitReady()) {
    kernels_.erase(entry);
    throw Failure("the kernels cannot be measured: " + crew.Complaint());
  }
  return entry->second = {static_cast<uint32_t>(crew.cell(0).values[0]),
                          static_cast<double>(crew.cell(0).values[1]) / 1e6};
}

double Measurement::RequestMsOf(const Load& load) {
  constexpr double kQuickMs = 10;
  if (host_.quick) return kQuickMs;
  const LoadPlan plan{load, KernelOf(load.kernel_us)};
  const auto [entry, is_new] = requests_ms_.try_emplace({load.script, load.kernel_us});
  if (!is_new) return entry->second;
  Crew crew(kStartLimitS);
  crew.Add(
      1,
      [plan](Stage& stage, Cell& cell, int) {
        const double ms =
            plan.load.work == Work::kProgram ? ProgramUnitMs(plan.load.script) : RequestMs(Gpu(), plan);
        cell.values[0] = static_cast<uint64_t>(ms * 1e6);
        stage.Ready(cell);
      },
      NativePlace(host_));
  if (!crew.AwaitReady()) {
    requests_ms_.erase(entry);
    throw Failure("a request cannot be measured: " + crew.Complaint());
  }
  return entry->second = static_cast<double>(crew.cell(0).values[0]) / 1e6;
}

LoadPlan Measurement::PlanOf(const Load& load, uint64_t seed) {
  LoadPlan plan{load, KernelOf(load.kernel_us), 0, seed};
  if (load.work == Work::kProgram) ReadProgram();
  if (AnswersRequests(load)) plan.request_gap_us = RequestMsOf(load) * 1e3 / kLoad;
  if (!host_.quick) return plan;
  plan.load.bytes = std::min(plan.load.bytes, kQuickBytes);
  plan.step_kernels = plan.token_kernels = plan.tokens = 2;
  plan.most_batch = 1;
  return plan;
}

}  // namespace causeway::bench::sharing
