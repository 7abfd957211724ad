// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/scopes/local_peer.h"

#include <fcntl.h>
#include <linux/nsfs.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace causeway::daemon {
namespace {

#ifndef SO_PEERPIDFD
constexpr int kPeerPidfd = 77;  // Linux 6.5
#else
constexpr int kPeerPidfd = SO_PEERPIDFD;
#endif

// A descriptor of the process that connected. Before Linux 6.5 its pid could in theory have been given to
// another process since then; that one has the same rights to look at itself only.
UniqueFd PeerPidfd(int socket, pid_t pid) {
  int fd = -1;
  socklen_t length = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, kPeerPidfd, &fd, &length) == 0) return UniqueFd(fd);
  return UniqueFd(pid > 0 ? int(syscall(SYS_pidfd_open, pid, 0)) : -1);
}

// 0 where it cannot be read.
ino_t Namespace(const std::string& process, const char* kind) {
  struct stat info {};
  return stat(("/proc/" + process + "/ns/" + kind).c_str(), &info) == 0 ? info.st_ino : 0;
}

// See LocalPeer::family. Empty where it cannot be told.
std::string MakerOfUserNamespace(const std::string& process) {
  constexpr int kDeepest = 40;  // the kernel makes 32
  struct stat own {
  }, info{};
  if (stat("/proc/self/ns/user", &own) != 0) return {};
  UniqueFd outermost(open(("/proc/" + process + "/ns/user").c_str(), O_RDONLY | O_CLOEXEC));
  for (int depth = 0; outermost && depth < kDeepest; ++depth) {
    UniqueFd above(ioctl(outermost.get(), NS_GET_PARENT));
    if (!above || fstat(above.get(), &info) != 0) return {};
    if (info.st_ino != own.st_ino) {
      outermost = std::move(above);
      continue;
    }
    uid_t owner = 0;
    if (ioctl(outermost.get(), NS_GET_OWNER_UID, &owner) != 0 || fstat(outermost.get(), &info) != 0)
      return {};
    return owner != 0 ? "uid:" + std::to_string(owner) : "namespace:" + std::to_string(info.st_ino);
  }
  return {};
}

bool Alive(const UniqueFd& pidfd) {
  pollfd end{pidfd.get(), POLLIN, 0};
  return poll(&end, 1, 0) == 0;
}

bool IsMember(int socket, gid_t primary, gid_t group) {
  if (primary == group) return true;
  std::vector<gid_t> groups(256);
  socklen_t length = socklen_t(groups.size() * sizeof(gid_t));
  if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) != 0) {
    if (errno != ERANGE) return false;
    groups.resize(length / sizeof(gid_t));
    if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) != 0) return false;
  }
  groups.resize(length / sizeof(gid_t));
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

}  // namespace

std::optional<LocalPeer> IdentifyPeer(int socket, std::optional<gid_t> admin_group) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return std::nullopt;
  LocalPeer peer;
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  peer.scope = "uid:" + std::to_string(credentials.uid);
  bool own_namespaces = true;
  if (credentials.pid > 0) {
    peer.pidfd = PeerPidfd(socket, credentials.pid);
    const std::string process = std::to_string(credentials.pid);
    const ino_t user = Namespace(process, "user"), pids = Namespace(process, "pid");
    static const ino_t own_user = Namespace("self", "user"), own_pids = Namespace("self", "pid");
    const bool has_own_user = user != own_user && user != 0;
    if (has_own_user) peer.family = MakerOfUserNamespace(process);
    // What was read is that process's, if it still lives.
    if (!peer.pidfd || !Alive(peer.pidfd)) return std::nullopt;
    own_namespaces = !has_own_user && (pids == own_pids || pids == 0);
    if (!own_namespaces) peer.scope += ":" + std::to_string(user) + "." + std::to_string(pids);
    if (has_own_user && peer.family.empty()) peer.family = "uid:" + std::to_string(credentials.uid);
  } else {
    own_namespaces = false;
    peer.scope += ":elsewhere";
  }
  if (peer.family.empty()) peer.family = peer.scope;
  const bool may = credentials.uid == 0 || credentials.uid == geteuid() ||
                   (admin_group && IsMember(socket, credentials.gid, *admin_group));
  peer.sees_all = own_namespaces && may;
  return peer;
}

std::optional<LocalPeer> IdentifyContainer(int socket) {
  auto peer = IdentifyPeer(socket, std::nullopt);
  if (!peer) return std::nullopt;
  peer->sees_all = false;
  peer->scope.insert(0, kContainerScope);
  peer->family.insert(0, kContainerScope);
  return peer;
}

}  // namespace causeway::daemon
