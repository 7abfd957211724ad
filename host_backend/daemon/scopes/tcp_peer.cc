// SPDX-License-Identifier: Apache-2.0
// The kernel's socket diagnosis (sock_diag), for one connection.
#include "host_backend/daemon/scopes/tcp_peer.h"

#include <arpa/inet.h>
#include <grp.h>
#include <ifaddrs.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "host_backend/common/unique_fd.h"

namespace causeway::daemon {
namespace {

struct Ends {
  sockaddr_storage own{}, peer{};
};

bool ReadEnds(int socket, Ends* ends) {
  socklen_t own = sizeof(ends->own), peer = sizeof(ends->peer);
  return getsockname(socket, reinterpret_cast<sockaddr*>(&ends->own), &own) == 0 &&
         getpeername(socket, reinterpret_cast<sockaddr*>(&ends->peer), &peer) == 0 &&
         ends->own.ss_family == ends->peer.ss_family;
}

bool IsLoopbackAddress(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24) == 127;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return address.ss_family == AF_INET6 &&
         (IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127));
}

void Fill(const sockaddr_storage& address, __be16* port, __be32 (&to)[4]) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    *port = v4.sin_port;
    to[0] = v4.sin_addr.s_addr;
  } else {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    *port = v6.sin6_port;
    std::memcpy(to, &v6.sin6_addr, sizeof(v6.sin6_addr));
  }
}

// Whether one of this host's interfaces has it.
bool IsOwnAddress(const sockaddr_storage& address) {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return true;  // held to the stricter rule
  __be16 port = 0;
  __be32 wanted[4] = {}, own[4] = {};
  Fill(address, &port, wanted);
  bool is_own = false;
  for (const ifaddrs* at = found; at != nullptr && !is_own; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != address.ss_family) continue;
    sockaddr_storage of_interface{};
    std::memcpy(&of_interface, at->ifa_addr,
                address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    Fill(of_interface, &port, own);
    is_own = std::memcmp(wanted, own, sizeof own) == 0;
  }
  freeifaddrs(found);
  return is_own;
}

}  // namespace

bool IsOwnConnection(int socket) {
  Ends ends;
  if (!ReadEnds(socket, &ends)) return false;
  return (IsLoopbackAddress(ends.own) && IsLoopbackAddress(ends.peer)) || IsOwnAddress(ends.peer);
}

std::optional<uid_t> LoopbackPeer(int socket) {
  Ends ends;
  if (!ReadEnds(socket, &ends)) return std::nullopt;
  struct {
    nlmsghdr header{};
    inet_diag_req_v2 question{};
  } request;
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.question.sdiag_family = uint8_t(ends.own.ss_family);
  request.question.sdiag_protocol = IPPROTO_TCP;
  request.question.idiag_states = 1u << TCP_ESTABLISHED;
  // As the other end sees it: its own address is the source.
  Fill(ends.peer, &request.question.id.idiag_sport, request.question.id.idiag_src);
  Fill(ends.own, &request.question.id.idiag_dport, request.question.id.idiag_dst);
  request.question.id.idiag_cookie[0] = request.question.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const UniqueFd link(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!link || send(link.get(), &request, sizeof(request), 0) != ssize_t(sizeof(request)))
    return std::nullopt;
  alignas(nlmsghdr) char answer[4096];
  const ssize_t bytes =
      recv(link.get(), answer, sizeof(answer), MSG_DONTWAIT);  // the kernel has answered already
  const auto* header = reinterpret_cast<const nlmsghdr*>(answer);
  if (bytes < ssize_t(NLMSG_LENGTH(sizeof(inet_diag_msg))) || header->nlmsg_type != SOCK_DIAG_BY_FAMILY)
    return std::nullopt;
  inet_diag_msg found;
  std::memcpy(&found, NLMSG_DATA(header), sizeof(found));
  // One that its process has closed has no inode, and then no user either: it would look like root's.
  if (found.idiag_state != TCP_ESTABLISHED || found.idiag_inode == 0) return std::nullopt;
  return found.idiag_uid;
}

bool MayUseSocket(uid_t user, const Config& config) {
  if (user == 0 || user == geteuid() || (config.socket_mode & 0002) != 0) return true;
  if ((config.socket_mode & 0020) == 0) return false;
  gid_t wanted = getegid();
  if (!config.socket_group.empty()) {
    const group* named = getgrnam(config.socket_group.c_str());
    if (named == nullptr) return false;
    wanted = named->gr_gid;
  }
  const passwd* account = getpwuid(user);
  if (account == nullptr) return false;
  std::vector<gid_t> groups(1024);
  int count = int(groups.size());
  if (getgrouplist(account->pw_name, account->pw_gid, groups.data(), &count) < 0) return false;
  return std::find(groups.begin(), groups.begin() + count, wanted) != groups.begin() + count;
}

}  // namespace causeway::daemon
