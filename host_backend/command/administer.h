// SPDX-License-Identifier: Apache-2.0
// `causeway reload`, `drain`, `set` and others: what the administrator of a running causewayd asks of it, by its control socket.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace causeway::command {

struct AdministerCommands {
  std::string control_socket;
  std::string vm;  // of drain; empty: all
  bool undo = false;
  uint32_t wait_s = 0;
  std::string scope;                  // of set, pause and resume
  std::vector<std::string> settings;  // of set: "KEY=VALUE"
  bool persist = false;
  bool json = false;
};

// Adds the subcommands to `app`. The options live as long as `app` parses.
void AddAdministerCommands(CLI::App& app, AdministerCommands& options);
// Runs the one that was asked for and returns its exit status; -1: it was none of these.
int RunAdministerCommand(const CLI::App& app, const AdministerCommands& options);

}  // namespace causeway::command
