// SPDX-License-Identifier: Apache-2.0
// `causeway keys`: makes, lists, shows and revokes the keys of remote guests (host_backend/common/key_folder.h).
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "host_backend/common/key_folder.h"

namespace causeway::command {

struct KeysCommands {
  std::string folder = kKeyFolder;
  std::string name;
  std::string vm;       // empty: as the key's name
  std::string expires;  // "90d", "12h" or a time; empty: never
  std::string from;     // of create: a guest's key file whose secret is made known here; empty: a new secret
  std::string output;   // empty: standard output
  bool secret = false;
};

void AddKeysCommands(CLI::App& app, KeysCommands& options);
// The exit status; negative: another command was given.
int RunKeysCommand(const CLI::App& app, const KeysCommands& options);

}  // namespace causeway::command
