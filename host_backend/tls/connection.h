// SPDX-License-Identifier: Apache-2.0
// The process of one connection: the handshake and the session's opening, after which the session's worker gets the guest's socket
// and this process waits for its end.
#pragma once

namespace causeway::tls {

// Runs until the connection is over. The descriptors are those of messages.h. Returns the exit status of the process.
int RunConnection();

}  // namespace causeway::tls
