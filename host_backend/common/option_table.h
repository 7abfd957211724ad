// SPDX-License-Identifier: Apache-2.0
// What a program's options are, for its manual page and for completion in shells: both are made from the same objects
// that read the command line, so that neither can say anything else.
#pragma once
#include <CLI/CLI.hpp>

namespace causeway {

// Adds the option --option-table, which --help does not list: it prints the options of `app` and of all its subcommands
// as JSON and ends the program as --help does. The last thing that is added to `app`.
void AddOptionTable(CLI::App& app);

}  // namespace causeway
