// SPDX-License-Identifier: Apache-2.0
// `causeway bench`: NVIDIA's library and Causeway's in turns, in one run on one machine, and every figure
// beside the goal that it has (docs/measurements.md).
#include <cstdio>
#include <fstream>

#include "host_backend/command/command.h"
#include "tools/bench/run.h"

namespace causeway::command {
namespace {

std::string WriteFile(const std::string& name, const std::string& text) {
  if (name.empty()) return {};
  std::ofstream file(name);
  file << text;
  file.close();
  return file ? "" : "The figures cannot be written to " + name + ": " + ErrnoText() + ".";
}

int List(const BenchOptions& options) {
  for (const bench::Figure& figure : bench::Figures(!options.plot_file.empty(), options.quick)) {
    std::printf("%-28s %-40s %-5s %s\n", figure.id.c_str(), figure.name.c_str(), figure.unit,
                bench::GoalText(figure).c_str());
  }
  return 0;
}

int Fail(const std::string& sentence) {
  std::fprintf(stderr, "causeway: %s\n", sentence.c_str());
  return kBenchFailed;
}

}  // namespace

int RunBench(const BenchOptions& options) {
  if (options.list) return List(options);
  bench::BenchRun run(options);
  if (std::string text = run.Prepare(); !text.empty()) return Fail(text);
  run.Measure();
  const bench::Report& report = run.report();
  std::printf("%s", TextOf(report).c_str());
  for (const std::string& text :
       {WriteFile(options.json_file, JsonOf(report) + "\n"),
        WriteFile(options.plot_file, options.plot_file.empty() ? "" : PlotOf(report))}) {
    if (!text.empty()) return Fail(text);
  }
  return run.complete() ? 0 : kBenchIncomplete;
}

}  // namespace causeway::command
