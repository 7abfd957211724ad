// SPDX-License-Identifier: Apache-2.0
// The options of the `causeway` command.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string_view>

#include "host_backend/command/administer.h"
#include "host_backend/command/attach_options.h"
#include "host_backend/command/command.h"
#include "host_backend/command/daemon_options.h"
#include "host_backend/command/keys.h"
#include "host_backend/command/top/table.h"
#include "host_backend/command/top/top.h"
#include "host_backend/common/option_table.h"
#include "ivshmem_ring/messages/local_protocol.h"

namespace {

using namespace causeway::command;

// `causeway bench` is a program of its own, so that what measures is no part of what is measured; `causeway doctor`,
// `causeway cdi` and `causeway pool` are one, because guests have them, too.
[[noreturn]] void ExecOther(const char* name, char** arguments) {
  const std::string program = ProgramFolder() + "/" + name;
  execv(program.c_str(), arguments);
  std::fprintf(stderr, "causeway: the program %s cannot be started: %s\n", program.c_str(),
               causeway::ErrnoText().c_str());
  _exit(1);
}

CLI::App* AddTrace(CLI::App& app, TraceOptions& trace) {
  trace.socket = causeway::kDefaultSocketPath;
  trace.session = causeway::kTraceLast;
  auto* trace_app = app.add_subcommand(
      "trace",
      "Export a session's last calls for chrome://tracing or ui.perfetto.dev, also after it has ended");
  auto* session =
      trace_app->add_option("--session", trace.session, "Number of the session, as --list shows it")
          ->type_name("NUMBER");
  trace_app
      ->add_flag_callback(
          "--last", [] {}, "The session that began last (default)")
      ->excludes(session);
  auto* round_trips = trace_app->add_flag(
      "--round-trips", trace.round_trips,
      "Count instead how often the program waited for the host in each of its steps, and name the calls");
  trace_app
      ->add_option("--step", trace.step,
                   "The call that ends a step, by the name that is shown (default: the rarest that repeats)")
      ->type_name("CALL")
      ->needs(round_trips);
  trace_app->add_flag("--list", trace.list, "List the sessions that can be traced");
  trace_app->add_option("--out", trace.out, "Write to this file instead of standard output")
      ->type_name("FILE");
  trace_app->add_option("--socket", trace.socket, "The daemon's socket")
      ->type_name("SOCKET")
      ->capture_default_str();
  return trace_app;
}

CLI::App* AddTop(CLI::App& app, TopOptions& options) {
  std::vector<std::string> names;
  for (const Column& column : Columns()) names.emplace_back(column.name);
  auto* top =
      app.add_subcommand("top", "Show what sessions do: calls, GPU time, memory, copies, queues, errors");
  options.socket = causeway::kDefaultSocketPath;
  top->add_option("-d,--delay", options.delay_s,
                  "Seconds between refreshes, each of which shows what was done meanwhile")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.5, 3600.0))
      ->capture_default_str();
  top->add_option("-n,--iterations", options.iterations, "End after so many refreshes (default: never)")
      ->type_name("NUMBER");
  top->add_flag("-b,--batch", options.batch, "Plain lines for programs and files, without keys");
  top->add_flag("--json", options.json, "A line of JSON for each refresh; what is not known is null");
  top->add_flag("--vms", options.scopes, "A row for each VM, user or peer instead of each session");
  top->add_flag("--shares", options.shares,
                "A row for each VM, user or peer and each GPU: what it had of its time");
  top->add_option("-o,--sort", options.sort, "The column that rows are sorted by")
      ->check(CLI::IsMember(names))
      ->capture_default_str();
  top->add_option("--socket", options.socket, "The daemon's socket")
      ->type_name("SOCKET")
      ->capture_default_str();
  return top;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"causeway: CUDA for virtual machines.", "causeway"};
  app.set_version_flag("--version", "causeway " CAUSEWAY_VERSION);
  app.require_subcommand(1);

  StatusOptions status;
  status.socket = causeway::kDefaultSocketPath;
  auto* status_app = app.add_subcommand("status", "Show what the daemon serves");
  status_app->add_flag("--json", status.json, "Print the daemon's JSON text");
  status_app->add_option("--socket", status.socket, "The daemon's socket")
      ->type_name("SOCKET")
      ->capture_default_str();

  RunOptions run;
  auto* run_app =
      app.add_subcommand("run", "Run one command through Causeway, with a private daemon on this host");
  AddDaemonOptions(*run_app, run.daemon);
  run_app->add_option("command", run.command, "The command and its arguments, after --")->required();
  run_app->positionals_at_end();

  run_app
      ->add_option("--trace", run.trace_file,
                   "Afterwards, write the session's trace to this file, those of further sessions beside it")
      ->type_name("FILE");

  TraceOptions trace;
  auto* trace_app = AddTrace(app, trace);

  TopOptions top;
  auto* top_app = AddTop(app, top);
  AttachCommands attach;
  AddAttachCommands(app, attach);
  AdministerCommands administer;
  AddAdministerCommands(app, administer);
  KeysCommands keys;
  AddKeysCommands(app, keys);

  app.add_subcommand("bench", "Measure native and Causeway's figures side by side");
  app.add_subcommand("doctor", "Look at every link between a program and the GPU, and name what is broken");
  app.add_subcommand(
      "cdi", "Print the CDI file by which container runtimes give a container the GPU (tried with podman)");
  app.add_subcommand("pool",
                     "List the remote hosts that this machine may use, their GPUs, load and free memory");
  causeway::AddOptionTable(app);
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "bench") ExecOther("causeway-bench", argv + 1);
  if (first == "doctor" || first == "cdi" || first == "pool") ExecOther("causeway-system", argv);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int kUsage = 2;
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (status_app->parsed()) return RunStatus(status);
  if (top_app->parsed()) return RunTop(top);
  if (trace_app->parsed()) return RunTrace(trace);
  if (const int done = RunAdministerCommand(app, administer); done >= 0) return done;
  if (const int done = RunKeysCommand(app, keys); done >= 0) return done;
  if (const int done = RunAttachCommand(app, attach); done >= 0) return done;
  return RunCommand(run);
}
