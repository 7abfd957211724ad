// SPDX-License-Identifier: Apache-2.0
// A guest's connection to a remote host, up to the answer to its opening message. All functions may be called from any thread; each wait
// is bounded. Errors are a sentence without its full stop.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "ivshmem_ring/hosts/host_list.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/tcp/stream_layer.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway {

// A connected socket, and what encrypts it (null: nothing does). Closed by its destructor unless `fd` is taken.
struct HostConnection {
  HostConnection() = default;
  ~HostConnection();
  HostConnection(const HostConnection&) = delete;
  HostConnection& operator=(const HostConnection&) = delete;
  int fd = -1;
  std::unique_ptr<StreamLayer> layer;
};

// Connects, and for tls:// loads libcauseway-tls.so.1 and proves the key. Each step, and each wait for a message of the handshake,
// takes `limit_s` at most; the system's look-up of names has limits of its own. `key_file`: as KeyFileFor has it, which looks at the
// environment.
std::string DialHost(const HostAddress& address, const std::string& key_file, int limit_s,
                     HostConnection* connection);

// Sends the opening message and waits, at most so long for each of its parts, for the answer. False: there is none.
bool ExchangeOpening(HostConnection& connection, const OpenBlock& open, int limit_s, LocalReply* reply);
// Receives what follows the answer. False: it did not come.
bool ReceiveMore(HostConnection& connection, std::span<std::byte> out, int limit_s);

// Says which of several hosts this process uses, if it uses one already, and keeps `host` otherwise ("": nothing is kept). What it
// keeps, all libraries of the process see, and so do forked children. The result is what is kept; empty: nothing, or
// libcauseway-tls.so.1 cannot be loaded.
std::string HostOfProcess(const std::string& host);

// Bounds each wait of the socket. 0: none is bounded.
void LimitWaits(int fd, int seconds);

// The opening message's fields that say what this program is, and what it wants; the others are zero.
void StateOpening(OpenBlock* block, SessionKind kind);

}  // namespace causeway
