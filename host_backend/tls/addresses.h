// SPDX-License-Identifier: Apache-2.0
// How the listener writes and counts the addresses of its peers.
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace causeway::tls {

// "192.0.2.1" or "[2001:db8::1]", with ":port" if asked. Numbers alone: nobody is asked for names.
std::string AddressText(const sockaddr_storage& address, bool with_port);

// The socket address of "192.0.2.1" or "2001:db8::1" with that port, and its length; 0: the text is neither.
socklen_t SocketAddress(const std::string& text, uint16_t port, sockaddr_storage* address);

// The listener and Strangers count peers under this name: its IPv4 address, or its IPv6 network of 64 bits ("[2001:db8::]/64"), because whoever has
// one address of such a network usually has all of them.
std::string NetworkOf(const sockaddr_storage& address);

}  // namespace causeway::tls
