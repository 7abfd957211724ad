// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/process/config_change.h"

namespace causeway::daemon {

std::vector<std::string> KeepUntilStart(const Config& running, Config& next) {
  std::vector<std::string> kept;
  const auto keep = [&](const char* key, auto field) {
    if (next.*field == running.*field) return;
    next.*field = running.*field;
    kept.emplace_back(key);
  };
  // Sockets, files and groups that are open or looked up already.
  keep("socket", &Config::socket);
  keep("socket_mode", &Config::socket_mode);
  keep("socket_group", &Config::socket_group);
  keep("container_folder", &Config::container_folder);
  keep("admin_group", &Config::admin_group);
  keep("state_folder", &Config::state_folder);
  keep("control_socket", &Config::control_socket);
  keep("control_group", &Config::control_group);
  keep("log_file", &Config::log_file);
  // What the launcher was told: it takes nothing of it from a daemon that runs (docs/sandbox.md).
  keep("worker", &Config::worker);
  keep("workers", &Config::workers);
  keep("driver_library", &Config::driver_library);
  keep("nvml_library", &Config::nvml_library);
  keep("nvml_shows_all", &Config::nvml_shows_all);
  keep("allow_pageable_access", &Config::allow_pageable_access);
  keep("worker_users", &Config::worker_users);
  keep("keep_sessions_s", &Config::keep_sessions_s);
  keep("attach_groups", &Config::attach_groups);
  // Its room for descriptors is shared out at the start.
  keep("image_cache_mib", &Config::image_cache_mib);
  if (next.tcp.address != running.tcp.address || next.tcp.port != running.tcp.port ||
      next.tcp.bridge != running.tcp.bridge) {
    next.tcp.address = running.tcp.address;
    next.tcp.port = running.tcp.port;
    next.tcp.bridge = running.tcp.bridge;
    kept.emplace_back("[tcp] listen");
  }
  // causeway-tls has read it, too. That it is here at all opened its socket.
  if (next.tls.listen != running.tls.listen || next.tls.keys != running.tls.keys ||
      next.tls.hand_over != running.tls.hand_over || next.tls.user != running.tls.user) {
    next.tls = running.tls;
    kept.emplace_back("[tls]");
  }
  return kept;
}

}  // namespace causeway::daemon
