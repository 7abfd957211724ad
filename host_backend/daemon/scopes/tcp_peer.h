// SPDX-License-Identifier: Apache-2.0
// Which user of this host has the other end of a TCP connection that does not leave it. The connection
// is neither encrypted nor authenticated, but the kernel knows the user of each end.
#pragma once
#include <sys/types.h>

#include <optional>

#include "host_backend/daemon/process/config.h"

namespace causeway::daemon {

// Whether the other end of a connected socket is on this host, too: by loopback addresses, or by another address that the host has.
bool IsOwnConnection(int socket);

// The user of the other end; empty if no living process has it any more.
std::optional<uid_t> LoopbackPeer(int socket);

// Whether that user may open the daemon's UNIX socket, by socket_mode and socket_group.
bool MayUseSocket(uid_t user, const Config& config);

}  // namespace causeway::daemon
