// SPDX-License-Identifier: Apache-2.0
// The process at the other end of a UNIX socket, as the kernel says.
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>

#include "host_backend/common/unique_fd.h"

namespace causeway::daemon {

struct LocalPeer {
  pid_t pid = 0;  // 0: of a pid namespace that this process cannot see
  uid_t uid = uid_t(-1);
  UniqueFd pidfd;  // empty where the pid is 0
  // "uid:NUMBER"; of a user or pid namespace that is not the daemon's, with the namespaces' numbers:
  // containers whose processes all have the same uid are tenants of their own. Where the daemon may not look
  // (it is neither root nor that user) the number alone counts.
  std::string scope;
  bool sees_all = false;  // root of the host, the daemon's user, or a member of the group given
};

// Nothing where the process ended while it was looked at.
std::optional<LocalPeer> IdentifyPeer(int socket, std::optional<gid_t> admin_group);

}  // namespace causeway::daemon
