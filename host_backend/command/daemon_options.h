// SPDX-License-Identifier: Apache-2.0
// The options of a command that starts a daemon of its own: `causeway run` and `causeway bench`.
#pragma once
#include <CLI/CLI.hpp>

#include "host_backend/command/command.h"

namespace causeway::command {

inline void AddDaemonOptions(CLI::App& app, PrivateDaemonOptions& options) {
  app.add_option("--driver", options.driver,
                 "CUDA driver library for the host's worker (default libcuda.so.1)")
      ->type_name("FILE");
  app.add_option("--guest-library", options.guest_library,
                 "Folder of Causeway's libcuda.so.1 (default beside this command)")
      ->type_name("FOLDER");
  app.add_option("--region-mib", options.region_mib, "Shared memory of one process, MiB, a power of two")
      ->type_name("MIB")
      ->capture_default_str();
  app.add_option("--daemon-log", options.log_file, "Keep the log of the private causewayd in this file")
      ->type_name("FILE");
  auto* tcp =
      app.add_flag("--tcp", options.tcp, "Use TCP on the loopback interface instead of shared memory");
  app.add_flag("--tls", options.tls, "Use TLS on the loopback interface, with a key of its own")
      ->excludes(tcp);
}

}  // namespace causeway::command
