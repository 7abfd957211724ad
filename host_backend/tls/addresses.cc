// SPDX-License-Identifier: Apache-2.0
#include "host_backend/tls/addresses.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

namespace causeway::tls {

std::string AddressText(const sockaddr_storage& address, bool with_port) {
  char text[INET6_ADDRSTRLEN] = "?";
  uint16_t port = 0;
  std::string host;
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    host = text;
    port = ntohs(v4.sin_port);
  } else {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    host = "[" + std::string(text) + "]";
    port = ntohs(v6.sin6_port);
  }
  return with_port ? host + ":" + std::to_string(port) : host;
}

socklen_t SocketAddress(const std::string& text, uint16_t port, sockaddr_storage* address) {
  *address = {};
  auto& v4 = reinterpret_cast<sockaddr_in&>(*address);
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    return sizeof v4;
  }
  auto& v6 = reinterpret_cast<sockaddr_in6&>(*address);
  if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) != 1) return 0;
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  return sizeof v6;
}

std::string NetworkOf(const sockaddr_storage& address) {
  if (address.ss_family != AF_INET6) return AddressText(address, false);
  sockaddr_storage network = address;
  auto& bytes = reinterpret_cast<sockaddr_in6&>(network).sin6_addr.s6_addr;
  std::fill(bytes + 8, bytes + 16, uint8_t{0});
  return AddressText(network, false) + "/64";
}

}  // namespace causeway::tls
