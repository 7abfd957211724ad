// SPDX-License-Identifier: Apache-2.0
// The way to one of several remote hosts (docs/remote.md). A process uses one host: the first of its libraries that opens a session
// chooses it, and the others follow.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "guest_lib/connection/connection.h"
#include "ivshmem_ring/hosts/host_list.h"

namespace causeway::guest {

// As Connect of connect.h. One host is not asked; of several, those that are passed over are each named in a line on stderr.
std::unique_ptr<Connection> ConnectHosts(const std::vector<HostAddress>& hosts, SessionKind kind,
                                         std::string* error);

// A session on that host alone.
std::unique_ptr<Connection> ConnectHost(const HostAddress& host, SessionKind kind, std::string* error);

}  // namespace causeway::guest
