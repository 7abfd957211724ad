// SPDX-License-Identifier: Apache-2.0
// How the listener writes and counts the addresses of its peers.
#pragma once
#include <sys/socket.h>

#include <string>

namespace causeway::tls {

// "192.0.2.1" or "[2001:db8::1]", with ":port" if asked. Numbers alone: nobody is asked for names.
std::string AddressText(const sockaddr_storage& address, bool with_port);

// What Strangers counts as one: the address, and of IPv6 the network of 64 bits, "[2001:db8::]/64", because somebody who has one
// address of it usually has all of them.
std::string NetworkOf(const sockaddr_storage& address);

}  // namespace causeway::tls
