// SPDX-License-Identifier: Apache-2.0
// The process of one connection: the handshake, then the session's bytes between the guest's socket and the daemon's.
#pragma once

namespace causeway::tls {

// Runs until the connection is over. The descriptors are those of messages.h. Returns the exit status of the process.
int RunConnection();

}  // namespace causeway::tls
