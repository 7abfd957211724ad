// SPDX-License-Identifier: Apache-2.0
// The ways to reach the host. The environment variable CAUSEWAY chooses one; without it the first two are
// tried in this order, and then the hosts in /etc/causeway/hosts where that file exists:
//   local:/path        the daemon's socket on this machine (also from a container)
//   module             /dev/causeway, the kernel module's device in a VM; module:/path names another one
//   tls://host:port    the host's TLS process (docs/remote.md), with the key in /etc/causeway/key or CAUSEWAY_KEY
//   tcp://host:port    the daemon over TCP, neither encrypted nor authenticated
//   hosts:/path        a file that names several hosts, one of which is chosen; tcp:// and tls:// may name several, too, with commas
//                      (connect_hosts.h)
#pragma once
#include <memory>
#include <string>

#include "guest_lib/connection/connection.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::guest {

// Opens a session of that kind and returns its connection, which the caller owns. On failure it returns null,
// and *error is one sentence that names every way tried. It waits for the host, for a bounded time.
std::unique_ptr<Connection> Connect(SessionKind kind, std::string* error);

}  // namespace causeway::guest
