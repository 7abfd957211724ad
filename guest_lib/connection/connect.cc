// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/connection/connect.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest_lib/connection/connect_hosts.h"
#include "guest_lib/connection/region_connection.h"
#include "ivshmem_ring/messages/local_protocol.h"

namespace causeway::guest {
namespace {

constexpr char kDevice[] = "/dev/causeway";

bool StartsWith(const char* text, const char* prefix) {
  return strncmp(text, prefix, strlen(prefix)) == 0;
}

std::unique_ptr<Connection> ConnectRemote(const std::string& problem, const std::vector<HostAddress>& hosts,
                                          SessionKind kind, std::string* error) {
  if (problem.empty()) return ConnectHosts(hosts, kind, error);
  *error = problem;
  return nullptr;
}

}  // namespace

std::unique_ptr<Connection> Connect(SessionKind kind, std::string* error) {
  const char* chosen = getenv("CAUSEWAY");
  std::vector<HostAddress> hosts;
  if (chosen != nullptr && *chosen != '\0') {
    if (StartsWith(chosen, "local:")) return ConnectLocal(chosen + 6, kind, error);
    if (strcmp(chosen, "module") == 0) return ConnectModule(kDevice, kind, error);
    if (StartsWith(chosen, "module:")) return ConnectModule(chosen + 7, kind, error);
    if (StartsWith(chosen, "hosts:"))
      return ConnectRemote(ReadHostsFile(chosen + 6, &hosts), hosts, kind, error);
    if (IsRemote(chosen)) {
      const std::string problem = ParseHostList(chosen, &hosts);
      return ConnectRemote(problem.empty() ? "" : "in the variable CAUSEWAY " + problem, hosts, kind, error);
    }
    *error = std::string("CAUSEWAY='") + chosen +
             "' is none of local:/path, module, tls://host:port, tcp://host:port, hosts:/path";
    return nullptr;
  }
  std::string local, module;
  if (auto connection = ConnectLocal(kDefaultSocketPath, kind, &local)) return connection;
  if (auto connection = ConnectModule(kDevice, kind, &module)) return connection;
  if (access(kHostsFile, F_OK) == 0)
    return ConnectRemote(ReadHostsFile(kHostsFile, &hosts), hosts, kind, error);
  *error = "no way to a host with a GPU: " + local + "; " + module +
           "; no tls://host:port is set in the variable CAUSEWAY or named in " + kHostsFile;
  return nullptr;
}

}  // namespace causeway::guest
