// SPDX-License-Identifier: Apache-2.0
// Ways to reach the host, tried in this order unless CAUSEWAY names one:
//   local:/path        the daemon's socket on this machine (also from a container)
//   module             /dev/causeway, the kernel module's device in a VM
//   tcp://host:port    the daemon over TCP
#pragma once
#include <memory>
#include <string>

#include "guest_lib/connection/connection.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::guest {

// A session of the library's kind. Null, and one sentence in *error that names every step tried.
std::unique_ptr<Connection> Connect(SessionKind kind, std::string* error);

}  // namespace causeway::guest
