// SPDX-License-Identifier: Apache-2.0
// Facts of sharing one GPU among processes, measured against NVIDIA's driver alone, without Causeway: the ground on which
// docs/sharing.md stands. Every part has a limit of time, all together six minutes; children that outlive it are killed, and no
// kernel runs longer than two seconds. Settings of the whole GPU are neither asked nor changed.
//
//   sharing_facts [--only switches,turns,...] [--json FILE] [--seconds S] [--driver LIBRARY] [--contexts N] [--gib N] [--blocks N] [--strict]
#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include "tests/bench/sharing_facts/parts/parts.h"
#include "tools/bench/crew/crew.h"
#include "tools/bench/crew/driver.h"

namespace sharing_facts {

double Plan::Left() const {
  const std::uint64_t now = NowNs();
  return now >= until_ns ? 0 : static_cast<double>(until_ns - now) / 1e9;
}

namespace {

struct Part {
  const char* name;
  void (*measure)(Plan&);
  double limit_s;
};
constexpr Part kParts[] = {{"switches", MeasureSwitches, 75},      {"turns", MeasureTurns, 30},
                           {"slices", MeasureSlices, 55},          {"contexts", MeasureContexts, 45},
                           {"faults", MeasureFaults, 80},          {"mps", MeasureMps, 45},
                           {"checkpoint", MeasureCheckpoints, 100}};
constexpr double kTogether_s = 330;

void Identify(Report& report) {
  report.Part("host", "what was measured");
  Crew crew(20);
  crew.Add(1, [](Stage& stage, Cell& cell, int) {
    Gpu gpu;
    int version = 0;
    gpu.driver().cuDriverGetVersion(&version);
    char name[128] = "";
    gpu.driver().cuDeviceGetName(name, sizeof(name), 0);
    std::snprintf(cell.message.data(), cell.message.size(), "%s, CUDA %d.%d of the driver", name,
                  version / 1000, version % 1000 / 10);
    stage.Ready(cell);
  });
  if (!crew.AwaitReady()) return report.NotMeasured("GPU", crew.Complaint());
  report.Words("GPU", crew.cell(0).message.data());
}

}  // namespace
}  // namespace sharing_facts

int main(int argc, char** argv) {
  using namespace sharing_facts;
  CLI::App app{"Facts of sharing one GPU among processes, without Causeway."};
  std::vector<std::string> only;
  bool strict = false;
  std::string json, driver = "libcuda.so.1";
  double seconds = 1;
  int contexts = 63, gib = 30, blocks = 0;
  std::vector<std::string> names;
  for (const Part& part : kParts) names.emplace_back(part.name);
  app.add_option("--only", only, "parts to measure, in the order of the program")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  app.add_option("--json", json, "file for the figures");
  app.add_option("--seconds", seconds, "length of one measurement")->check(CLI::Range(0.01, 10.0));
  app.add_option("--driver", driver, "NVIDIA's library, or one that stands in for it");
  app.add_option("--contexts", contexts, "most idle contexts")->check(CLI::Range(0, 63));
  app.add_option("--blocks", blocks, "blocks of kernels that fill the GPU; 0: two for each multiprocessor")
      ->check(CLI::Range(0, 100000));
  app.add_flag("--strict", strict, "exit status 2 when something could not be measured");
  app.add_option("--gib", gib, "largest size of a checkpoint")->check(CLI::Range(0, 64));
  CLI11_PARSE(app, argc, argv);

  SetDriverPath(driver);
  SetBlocks(blocks);
  Report report;
  Identify(report);
  const std::uint64_t end = NowNs() + static_cast<std::uint64_t>(kTogether_s * 1e9);
  for (const Part& part : kParts) {
    if (!only.empty() && std::find(only.begin(), only.end(), part.name) == only.end()) continue;
    const std::uint64_t until = std::min(end, NowNs() + static_cast<std::uint64_t>(part.limit_s * 1e9));
    Plan plan{report, seconds, until, contexts, gib};
    if (plan.Left() <= 0) {
      report.Part(part.name, "left out");
      report.NotMeasured("all", "the time of the whole program was over");
      continue;
    }
    const std::uint64_t begin = NowNs();
    try {
      part.measure(plan);
    } catch (const Failure& failure) {
      report.NotMeasured("the rest", failure.what());
    }
    report.Figure("this part", "took", static_cast<double>(NowNs() - begin) / 1e9, "s");
  }
  if (!json.empty() && !report.Write(json)) {
    std::fprintf(stderr, "%s could not be written.\n", json.c_str());
    return 1;
  }
  return strict && report.not_measured() != 0 ? 2 : 0;
}
