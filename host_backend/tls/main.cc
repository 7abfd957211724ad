// SPDX-License-Identifier: Apache-2.0
// causeway-tls: the TLS connections of remote guests. Its options.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "host_backend/common/option_table.h"
#include "host_backend/tls/connection.h"
#include "host_backend/tls/listener.h"

int main(int argc, char** argv) {
  using namespace causeway;
  // Before anything else: this process reads strangers' bytes, and needs no more than two descriptors.
  if (argc == 2 && std::string(argv[1]) == "--connection") return tls::RunConnection();
  CLI::App app{"causeway-tls accepts encrypted connections of remote guests for causewayd.", "causeway-tls"};
  std::string path = "/etc/causeway/causewayd.toml";
  app.add_option("--config", path, "causewayd's configuration file, of which [tls] counts")
      ->type_name("FILE")
      ->capture_default_str();
  app.set_version_flag("--version", "causeway-tls " CAUSEWAY_VERSION);
  AddOptionTable(app);
  CLI11_PARSE(app, argc, argv);

  const auto config = daemon::LoadConfig(path);
  std::string problem = config.ok() ? "" : config.error();
  if (problem.empty() && config.value().tls.listen.empty())
    problem = path + " has no [tls] table with `listen`, so that there is nothing to do.";
  if (problem.empty()) problem = daemon::StartLog("", config.value().log_level, false);
  if (!problem.empty()) {
    std::fprintf(stderr, "causeway-tls: %s\n", problem.c_str());
    return 1;
  }
  tls::Listener listener(config.value());
  if (problem = listener.Start(); !problem.empty()) {
    daemon::LogError(problem);
    return 1;
  }
  listener.Run();
  return 0;
}
