// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/administer.h"

#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>

#include "host_backend/command/attach/control_client.h"
#include "host_backend/command/command.h"
#include "host_backend/common/control_socket.h"
#include "ivshmem_ring/messages/local_protocol.h"

namespace causeway::command {
namespace {

constexpr const char* kSettings[] = {"weight", "cap", "reserve", "class", "pcie_mib_per_s", "turn_ms"};

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

constexpr int kUsage = 2;

// The text's number, or the text itself, of which the daemon says what it must be. Numbers are written as in its configuration.
Json ValueOf(const std::string& text) {
  const Json value = Json::parse(text, nullptr, false);
  return value.is_number() ? value : Json(text);
}

// "" or what is wrong with the text of one setting, which otherwise is added.
std::string AddSetting(const std::string& text, Json* request) {
  const size_t equals = text.find('=');
  const std::string key = text.substr(0, equals);
  bool known = false;
  for (const char* each : kSettings) known = known || key == each;
  if (!known || equals == std::string::npos || equals + 1 == text.size()) {
    return "`" + text +
           "` is no setting; settings are weight=, cap=, reserve=, class= and pcie_mib_per_s= of a VM, and "
           "turn_ms= "
           "of a GPU.";
  }
  if (request->contains(key)) return key + " is set twice.";
  (*request)[key] = ValueOf(text.substr(equals + 1));
  return {};
}

void PrintTerms(const Json& answer) {
  const auto number = [&](const char* key) { return std::to_string(answer.value(key, uint64_t{0})); };
  if (answer.contains("gpu")) {
    std::printf("%s: turns of %s ms, until the next reload.\n",
                PrintableText(answer.value("gpu", "")).c_str(),
                JsonText(answer.value("turn_ms", 0.0)).c_str());
    return;
  }
  const bool bounded = answer.value("pcie_mib_per_s", uint64_t{0}) != 0;
  const std::string link = bounded ? ", " + number("pcie_mib_per_s") + " MiB/s of copies each way" : "";
  std::printf("%s: weight %s, cap %s %%, reserve %s %%, class %s%s%s%s.\n",
              PrintableText(answer.value("scope", "")).c_str(), number("weight").c_str(),
              number("cap").c_str(), number("reserve").c_str(),
              PrintableText(answer.value("class", "")).c_str(), link.c_str(),
              answer.value("paused", false) ? ", paused" : "",
              answer.value("until_reload", false) ? "; some of it until the next reload" : "");
}

int Ask(const AdministerCommands& options, const Json& request) {
  const auto answer = AskControl(options.control_socket, request);
  if (!answer.ok()) return Failed(answer.error());
  if (options.json) {
    std::printf("%s\n", JsonText(answer.value()).c_str());
  } else {
    PrintTerms(answer.value());
  }
  return 0;
}

int RunSet(const AdministerCommands& options) {
  Json request = {{"do", "set"}, {"name", options.scope}};
  for (const std::string& setting : options.settings) {
    if (const std::string wrong = AddSetting(setting, &request); !wrong.empty()) {
      Failed(wrong);
      return kUsage;
    }
  }
  if (options.persist) request["persist"] = true;
  return Ask(options, request);
}

void AddShareCommands(const std::function<CLI::App*(const char*, const char*)>& add,
                      AdministerCommands& options) {
  constexpr const char* kScope = "causeway status's name of a VM, a user (uid:NUMBER) or a peer";
  auto* set = add("set", "Change what a VM has of the GPUs' time; its sessions go on");
  set->add_option("VM", options.scope, std::string(kScope) + "; of turn_ms a GPU's UUID")->required();
  set->add_option("SETTING", options.settings,
                  "weight=NUMBER, cap=PERCENT, reserve=PERCENT, class=latency, normal or background, "
                  "pcie_mib_per_s=NUMBER; "
                  "turn_ms=MILLISECONDS of a GPU")
      ->required();
  set->add_flag("--persist", options.persist,
                "Beyond the next reload, of a VM that causeway attach has added (default: until then)");
  auto* pause = add("pause", "Have no work of a VM start on GPUs: what runs ends, calls wait");
  auto* resume = add("resume", "Have work of a paused VM start again");
  for (auto* each : {pause, resume}) each->add_option("VM", options.scope, kScope)->required();
  for (auto* each : {set, pause, resume})
    each->add_flag("--json", options.json, "Print the daemon's answer as JSON");
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
  AddShareCommands(add, options);
}

int RunAdministerCommand(const CLI::App& app, const AdministerCommands& options) {
  if (app.got_subcommand("reload")) return RunReload(options);
  if (app.got_subcommand("upgrade")) return RunUpgrade(options);
  if (app.got_subcommand("drain")) return RunDrain(options);
  if (app.got_subcommand("set")) return RunSet(options);
  for (const char* each : {"pause", "resume"}) {
    if (app.got_subcommand(each)) return Ask(options, {{"do", each}, {"name", options.scope}});
  }
  return -1;
}

}  // namespace causeway::command
