// SPDX-License-Identifier: Apache-2.0
// causeway-bench, which `causeway bench` becomes: NVIDIA's library and Causeway's in turns, in one run on one
// machine, and every figure beside the goal that it has (docs/measurements.md).
#include <CLI/CLI.hpp>
#include <cstdio>

#include "host_backend/command/daemon_options.h"
#include "host_backend/common/option_table.h"
#include "tools/bench/exit_status.h"
#include "tools/bench/plot.h"
#include "tools/bench/remote/transports.h"
#include "tools/bench/run.h"
#include "tools/bench/sharing/sharing_run.h"

namespace causeway::bench {
namespace {

void AddOptions(CLI::App& app, BenchOptions& bench) {
  command::AddDaemonOptions(app, bench.daemon);
  app.add_option("--native", bench.native, "CUDA driver library to compare with (default that of --driver)")
      ->type_name("FILE");
  app.add_option("--rounds", bench.rounds, "Samples of each figure and side, in turns")
      ->type_name("NUMBER")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--limit", bench.limit_s, "No further figure after so many seconds; of --sharing 540")
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_option("--only", bench.only,
                 "Only figures whose name or id has this in it, or matches it (*, ?); several: A|B")
      ->type_name("PATTERN");
  app.add_flag("--list", bench.list, "List the figures and their goals, and measure nothing");
  app.add_option("--json", bench.json_file, "Also write all samples to this file")->type_name("FILE");
  app.add_option(
         "--plot", bench.plot_file,
         "Also measure the copies' curve and draw it into this file (.svg, .png or .pdf; needs Python's "
         "matplotlib)")
      ->type_name("FILE");
  app.add_option("--idle-sessions", bench.idle_sessions,
                 "Sessions whose processor time is measured while they do nothing")
      ->type_name("NUMBER")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--guest-only", bench.guest_only,
               "Inside a VM: only Causeway's figures, with CAUSEWAY as it is set");
  app.add_option(
         "--transport", bench.transports,
         "Compare transports over sockets with native, shared memory and bare sockets: tcp, tls or tcp,tls")
      ->type_name("NAMES")
      ->delimiter(',')
      ->check(CLI::IsMember({"tcp", "tls"}))
      ->excludes("--tcp")
      ->excludes("--tls")
      ->excludes("--guest-only")
      ->excludes("--only")
      ->excludes("--plot");
  app.add_flag("--quick", bench.quick,
               "Few repetitions, small copies, three idle sessions: a test of the benchmark itself");
  app.footer(
      "Exit status: 0 every figure was measured, whether its goal is met or not; 1 nothing could be measured "
      "or a file\n"
      "not written; 3 some figures could not be measured, time was up, or the picture could not be drawn;\n"
      "100 and more: wrong options.");
}

void AddSharingOptions(CLI::App& app, SharingOptions& sharing) {
  auto* wanted = app.add_flag(
      "--sharing", sharing.wanted,
      "Measure instead how several VMs share the GPU, natively, by MPS and through Causeway; as root");
  app.add_option("--ways", sharing.ways,
                 "Of --sharing: native (alone), slices (the driver's time slices), mps, causeway (default: "
                 "all that are there)")
      ->type_name("NAMES")
      ->delimiter(',')
      ->check(CLI::IsMember({"native", "slices", "mps", "causeway"}))
      ->needs(wanted);
  app.add_option("--rows", sharing.rows,
                 "Of --sharing: only rows whose id it is, or whose id or name has it, or matches it (*, ?)")
      ->type_name("NAMES")
      ->delimiter(',')
      ->needs(wanted);
  app.add_option("--seconds", sharing.seconds, "Of --sharing: how long a row's processes work")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.2, 60.0))
      ->capture_default_str()
      ->needs(wanted);
  app.add_option("--faults", sharing.faults,
                 "Of --sharing: faults, kills, and deaths of each kind through Causeway (default: as many as "
                 "the row's time "
                 "allows); with --json, those of earlier runs in that file are added")
      ->type_name("NUMBER")
      ->check(CLI::Range(1, 100000))
      ->needs(wanted);
  app.add_option("--kills", sharing.kills,
                 "Of --sharing: processes that the row `faults` kills (default: as many as --faults)")
      ->type_name("NUMBER")
      ->check(CLI::Range(1, 100000))
      ->needs(app.get_option("--faults"));
  app.add_option("--pictures", sharing.pictures,
                 "Of --sharing: draw shares over time and latencies into sharing-shares.svg and "
                 "sharing-latency.svg in this folder "
                 "(needs Python's matplotlib)")
      ->type_name("FOLDER")
      ->check(CLI::ExistingDirectory)
      ->needs(wanted);
  for (const char* other : {"--only", "--plot", "--guest-only", "--transport", "--tcp", "--tls"})
    wanted->excludes(app.get_option(other));
}

int List(const BenchOptions& options) {
  for (const Figure& figure : Figures(!options.plot_file.empty(), options.quick)) {
    std::printf("%-28s %-40s %-5s %s\n", figure.id.c_str(), figure.name.c_str(), figure.unit,
                GoalText(figure).c_str());
  }
  return 0;
}

int Measure(const BenchOptions& options) {
  if (options.list) return List(options);
  if (!options.transports.empty()) {
    bool complete = false;
    if (std::string text = MeasureTransports(options, &complete); !text.empty()) return Fail(text);
    return complete ? 0 : kBenchIncomplete;
  }
  const bool plots = !options.plot_file.empty();
  // With a file of all samples, a picture can be drawn later and elsewhere.
  if (plots && options.json_file.empty() && !CanPlot()) return kBenchFailed;
  BenchRun run(options);
  if (std::string text = run.Prepare(); !text.empty()) return Fail(text);
  run.Measure();
  const Report& report = run.report();
  std::printf("%s", TextOf(report).c_str());
  const std::string json = JsonOf(report) + "\n";
  if (std::string text = WriteFile(options.json_file, json); !text.empty()) return Fail(text);
  if (plots && !Plot(json, options.plot_file)) return kBenchIncomplete;
  return run.complete() ? 0 : kBenchIncomplete;
}

int Main(int argc, char** argv) {
  CLI::App app{"Measure native and Causeway's figures side by side", "causeway bench"};
  BenchOptions options;
  SharingOptions sharing;
  AddOptions(app, options);
  AddSharingOptions(app, sharing);
  AddOptionTable(app);
  CLI11_PARSE(app, argc, argv);
  if (options.quick && app.count("--idle-sessions") == 0) options.idle_sessions = 3;
  if (!sharing.wanted) return Measure(options);
  if (app.count("--limit") == 0) options.limit_s = kSharingLimitS;
  return MeasureSharing(options, sharing);
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  return causeway::bench::Main(argc, argv);
}
