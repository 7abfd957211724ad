// SPDX-License-Identifier: Apache-2.0
// The process at the other end of a UNIX socket, as the kernel says.
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>

#include "host_backend/common/unique_fd.h"

namespace causeway::daemon {

struct LocalPeer {
  pid_t pid = 0;  // 0: it is in a pid namespace that this process cannot see
  uid_t uid = uid_t(-1);
  UniqueFd pidfd;  // empty where the pid is 0
  // "uid:NUMBER". The numbers of the user and pid namespace follow if they are not the daemon's, so that
  // containers are scopes of their own although their processes all have the same uid. Where the daemon may
  // not look (it is neither root nor that user) the uid alone counts.
  std::string scope;
  // Who can make further such scopes: "uid:NUMBER" of the user who made the outermost user namespace of the
  // process, or, where root made that, "namespace:NUMBER", as what is in there can make more. Else `scope`.
  std::string family;
  bool sees_all = false;  // it is the host's root, the daemon's user, or a member of `admin_group`
};

// What the scopes and families of clients at the containers' socket begin with, before what is said above.
inline constexpr char kContainerScope[] = "container:";

// The result is empty if the process ended meanwhile. The socket stays the caller's.
std::optional<LocalPeer> IdentifyPeer(int socket, std::optional<gid_t> admin_group);

// The same for a client at the containers' socket: it sees its own scope alone, whoever it is, and never has that of a user
// of the host. Root in a container may have the uid 0 of the host, and an unprivileged daemon cannot see its namespaces.
std::optional<LocalPeer> IdentifyContainer(int socket);

}  // namespace causeway::daemon
