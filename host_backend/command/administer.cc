// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/administer.h"

#include <chrono>
#include <cstdio>
#include <thread>

#include "host_backend/command/attach/control_client.h"
#include "host_backend/command/command.h"
#include "host_backend/common/control_socket.h"
#include "ivshmem_ring/messages/local_protocol.h"

namespace causeway::command {
namespace {

int RunReload(const AdministerCommands& options) {
  const auto answer = AskControl(options.control_socket, {{"do", "reload"}});
  if (!answer.ok()) return Failed(answer.error());
  std::printf("%s\n", PrintableText(answer.value().value("text", "")).c_str());
  return 0;
}

int RunUpgrade(const AdministerCommands& options) {
  const auto answer = AskControl(options.control_socket, {{"do", "upgrade"}});
  if (!answer.ok()) return Failed(answer.error());
  // The next daemon has the same socket, and answers when it serves.
  const auto next = AskControl(options.control_socket, {{"do", "list"}});
  if (!next.ok())
    return Failed("The causewayd that was started does not answer: " + next.error() + " See its log.");
  std::printf("causewayd was upgraded, and its sessions go on.\n");
  return 0;
}

int RunDrain(const AdministerCommands& options) {
  constexpr std::chrono::seconds kLook{1};
  Json request = {{"do", "drain"}, {"undo", options.undo}};
  if (!options.vm.empty()) request["name"] = options.vm;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(options.wait_s);
  for (;;) {
    const auto answer = AskControl(options.control_socket, request);
    if (!answer.ok()) return Failed(answer.error());
    const auto sessions = answer.value().value("sessions", uint64_t{0});
    if (options.undo || sessions == 0 || std::chrono::steady_clock::now() >= end) {
      std::printf("%s %llu sessions are left.\n",
                  options.undo ? "Sessions may begin again." : "No session begins any more.",
                  static_cast<unsigned long long>(sessions));
      return options.undo || options.wait_s == 0 || sessions == 0 ? 0 : 1;
    }
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace

void AddAdministerCommands(CLI::App& app, AdministerCommands& options) {
  options.control_socket = ControlSocketOf(kDefaultSocketPath);
  const auto add = [&](const char* name, const char* help) {
    auto* command = app.add_subcommand(name, help);
    command->add_option("--control-socket", options.control_socket, "causewayd's control socket")
        ->capture_default_str();
    return command;
  };
  add("reload", "Have causewayd read its configuration again; sessions go on");
  add("upgrade", "Have causewayd become the program that is installed now; sessions go on");
  auto* drain = add("drain", "Have causewayd begin no further sessions; those that live go on");
  drain->add_option("VM", options.vm, "causewayd's name of one VM (default: all VMs, users and peers)");
  auto* undo = drain->add_flag("--undo", options.undo, "Sessions may begin again");
  drain
      ->add_option("--wait", options.wait_s,
                   "Wait so many seconds for the sessions to end; exit status 1 if some are left")
      ->check(CLI::Range(1, 1'000'000))
      ->excludes(undo);
}

int RunAdministerCommand(const CLI::App& app, const AdministerCommands& options) {
  if (app.got_subcommand("reload")) return RunReload(options);
  if (app.got_subcommand("upgrade")) return RunUpgrade(options);
  if (app.got_subcommand("drain")) return RunDrain(options);
  return -1;
}

}  // namespace causeway::command
