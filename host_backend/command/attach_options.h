// SPDX-License-Identifier: Apache-2.0
// The options of `causeway attach`, `detach`, `list` and `xml`.
#pragma once
#include <CLI/CLI.hpp>

#include "host_backend/command/attach/attach.h"

namespace causeway::command {

struct AttachCommands {
  AttachOptions attach;
  DetachOptions detach;
  ListOptions list;
  XmlOptions xml;
};

// Adds the four subcommands to `app`. The options live as long as `app` parses.
void AddAttachCommands(CLI::App& app, AttachCommands& options);
// Runs the one that was asked for; -1: it was none of these.
int RunAttachCommand(const CLI::App& app, const AttachCommands& options);

}  // namespace causeway::command
