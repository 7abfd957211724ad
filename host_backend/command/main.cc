// SPDX-License-Identifier: Apache-2.0
// The options of the `causeway` command.
#include <CLI/CLI.hpp>

#include "host_backend/command/command.h"
#include "ivshmem_ring/messages/local_protocol.h"

namespace {

using namespace causeway::command;

void AddDaemonOptions(CLI::App& app, PrivateDaemonOptions& options) {
  app.add_option("--driver", options.driver,
                 "CUDA driver library for the host's worker (default libcuda.so.1)");
  app.add_option("--guest-library", options.guest_library,
                 "Folder of Causeway's libcuda.so.1 (default beside this command)");
  app.add_option("--region-mib", options.region_mib, "Shared memory of one process, MiB, a power of two")
      ->capture_default_str();
  app.add_option("--daemon-log", options.log_file, "Keep the log of the private causewayd in this file");
  app.add_flag("--tcp", options.tcp, "Use TCP on the loopback interface instead of shared memory");
}

void AddBenchOptions(CLI::App& app, BenchOptions& bench) {
  AddDaemonOptions(app, bench.daemon);
  app.add_option("--native", bench.native, "CUDA driver library to compare with (default that of --driver)");
  app.add_option("--rounds", bench.rounds, "Samples of each figure and side, in turns")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--limit", bench.limit_s, "No further figure after so many seconds")->capture_default_str();
  app.add_option("--only", bench.only,
                 "Only figures whose name or id has this in it, or matches it (*, ?); several: A|B");
  app.add_flag("--list", bench.list, "List the figures and their goals, and measure nothing");
  app.add_option("--json", bench.json_file, "Also write all samples to this file");
  app.add_option("--plot", bench.plot_file,
                 "Also measure the copies' curve and draw it into this file (SVG)");
  app.add_option("--idle-sessions", bench.idle_sessions,
                 "Sessions whose processor time is measured while they do nothing")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--guest-only", bench.guest_only,
               "Inside a VM: only Causeway's figures, with CAUSEWAY as it is set");
  app.add_flag("--quick", bench.quick,
               "Few repetitions, small copies, three idle sessions: a test of the benchmark itself");
  app.footer(
      "Exit status: 0 every figure was measured, whether its goal is met or not; 1 nothing could be measured "
      "or a file\n"
      "not written; 3 some figures could not be measured, or time was up; 100 and more: wrong options.");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"causeway: CUDA for virtual machines."};
  app.set_version_flag("--version", "causeway " CAUSEWAY_VERSION);
  app.require_subcommand(1);

  StatusOptions status;
  status.socket = causeway::kDefaultSocketPath;
  auto* status_app = app.add_subcommand("status", "Show what the daemon serves");
  status_app->add_flag("--json", status.json, "Print the daemon's JSON text");
  status_app->add_option("--socket", status.socket, "The daemon's socket")->capture_default_str();

  RunOptions run;
  auto* run_app =
      app.add_subcommand("run", "Run one command through Causeway, with a private daemon on this host");
  AddDaemonOptions(*run_app, run.daemon);
  run_app->add_option("command", run.command, "The command and its arguments, after --")->required();
  run_app->positionals_at_end();

  run_app->add_option(
      "--trace", run.trace_file,
      "Afterwards, write the session's trace to this file, those of further sessions beside it");

  TraceOptions trace;
  trace.socket = causeway::kDefaultSocketPath;
  trace.session = causeway::kTraceLast;
  auto* trace_app = app.add_subcommand(
      "trace",
      "Export a session's last calls for chrome://tracing or ui.perfetto.dev, also after it has ended");
  auto* session =
      trace_app->add_option("--session", trace.session, "Number of the session, as --list shows it");
  trace_app
      ->add_flag_callback(
          "--last", [] {}, "The session that began last (default)")
      ->excludes(session);
  trace_app->add_flag("--list", trace.list, "List the sessions that can be traced");
  trace_app->add_option("--out", trace.out, "Write to this file instead of standard output");
  trace_app->add_option("--socket", trace.socket, "The daemon's socket")->capture_default_str();

  BenchOptions bench;
  AddBenchOptions(*app.add_subcommand("bench", "Measure native and Causeway's figures side by side"), bench);

  CLI11_PARSE(app, argc, argv);
  if (bench.quick && app.get_subcommand("bench")->count("--idle-sessions") == 0) bench.idle_sessions = 3;
  if (status_app->parsed()) return RunStatus(status);
  if (trace_app->parsed()) return RunTrace(trace);
  if (run_app->parsed()) return RunCommand(run);
  return RunBench(bench);
}
