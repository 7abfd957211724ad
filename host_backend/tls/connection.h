// SPDX-License-Identifier: Apache-2.0
// The process of one connection: the handshake and the session's opening, after which the session's worker gets the guest's socket
// and this process waits for its end.
#pragma once
#include <string>

namespace causeway::tls {

// Runs until the connection is over. The descriptors are those of messages.h. Returns the exit status of the process.
int RunConnection();
// The same with other descriptors, which stay the caller's. `confine` is called once the keys can be asked for and before the peer's
// first byte is read; empty, or what failed.
int ServeConnection(int peer, int listener, std::string (*confine)());

}  // namespace causeway::tls
