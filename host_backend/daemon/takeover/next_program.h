// SPDX-License-Identifier: Apache-2.0
// The program that takes this daemon's place.
#pragma once
#include <string>

namespace causeway::daemon {

// Of the program that runs; to be asked before another one is installed in its place.
std::string ProgramPath();
// Has the installed program read the configuration, and say whether it reads what this daemon leaves and speaks to a
// launcher of that version. Waits for it, at most
// 20 s. Empty, or one sentence that says why it would not start.
std::string WhyNotStarted(const std::string& program, const std::string& configuration,
                          int32_t launcher_version);
// Returns only where it fails, with errno's meaning. Nothing of this process stays open but the standard descriptors.
std::string BecomeProgram(const std::string& program, char** arguments);

}  // namespace causeway::daemon
