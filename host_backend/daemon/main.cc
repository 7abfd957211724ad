// SPDX-License-Identifier: Apache-2.0
// causewayd's options.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "host_backend/common/option_table.h"
#include "host_backend/daemon/daemon.h"

int main(int argc, char** argv) {
  using namespace causeway::daemon;
  using causeway::launcher::kOldestVersion;
  using causeway::launcher::kVersion;
  CLI::App app{"causewayd serves the host's GPUs to virtual machines and local processes.", "causewayd"};
  std::string path = "/etc/causeway/causewayd.toml";
  bool check = false;
  bool foreground = false;
  uint32_t state_version = 0;
  app.add_option("--config", path, "Configuration file (TOML)")->type_name("FILE")->capture_default_str();
  app.add_flag("--check", check, "Check the configuration and exit");
  app.add_option("--state-version", state_version,
                 "With --check: whether what a daemon of that version leaves can be read");
  int32_t launcher_version = kVersion;
  app.add_option("--launcher-version", launcher_version,
                 "With --check: whether a launcher of that version is understood");
  app.add_flag("--foreground", foreground, "Write the log to standard error also where log_file is set");
  app.set_version_flag("--version", "causewayd " CAUSEWAY_VERSION);
  causeway::AddOptionTable(app);
  CLI11_PARSE(app, argc, argv);

  auto config = LoadConfig(path);
  if (!config.ok()) {
    std::fprintf(stderr, "causewayd: %s\n", config.error().c_str());
    return 1;
  }
  if (check && (launcher_version < kOldestVersion || launcher_version > kVersion)) {
    std::fprintf(
        stderr,
        "causewayd: the launcher that runs speaks version %d of its protocol, and causewayd " CAUSEWAY_VERSION
        " speaks versions %d to %d; drain the daemon, stop it and start this one.\n",
        launcher_version, kOldestVersion, kVersion);
    return 1;
  }
  if (check && state_version > kStateVersion) {
    std::fprintf(stderr, "causewayd: the daemon that runs is of a later version than " CAUSEWAY_VERSION
                         ", which cannot take over its sessions; drain it, stop it and start this one.\n");
    return 1;
  }
  if (check) {
    std::printf("%s is correct.\n", path.c_str());
    return 0;
  }
  if (std::string text = StartLog(config.value().log_file, config.value().log_level, foreground);
      !text.empty()) {
    std::fprintf(stderr, "causewayd: %s.\n", text.c_str());
    return 1;
  }
  Daemon daemon(config.value(), path, argv);
  if (std::string text = daemon.Start(); !text.empty()) {
    LogError(text);
    // Whoever started it looks here first.
    if (!config.value().log_file.empty() && !foreground)
      std::fprintf(stderr, "causewayd: %s\n", text.c_str());
    daemon.EndWithoutSessions();
    return 1;
  }
  return daemon.Run() ? 0 : 1;
}
