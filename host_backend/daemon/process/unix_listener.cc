// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/process/unix_listener.h"

#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace causeway::daemon {

Result<WorkerFd> BindListener(const ListenerPlan& plan) {
  constexpr int kBacklog = 128;
  const std::string intro = "The socket " + plan.path + " ";
  const std::string correct = "correct `" + plan.key + "`";
  sockaddr_un address{};
  if (plan.path.size() >= sizeof(address.sun_path))
    return Error{intro + "cannot be made: its path is longer than 107 bytes; " + correct + "."};
  struct stat old {};
  if (lstat(plan.path.c_str(), &old) == 0) {
    if (!S_ISSOCK(old.st_mode)) {
      return Error{intro + "cannot be made: a file of another kind has that name; remove it or " + correct +
                   "."};
    }
    unlink(plan.path.c_str());
  }
  WorkerFd listener(socket(AF_UNIX, plan.type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!plan.takes_descriptors) RefuseDescriptors(listener.get());
  address.sun_family = AF_UNIX;
  plan.path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const mode_t before = umask(0777);
  const bool bound =
      listener && bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  const int bind_error = errno;
  umask(before);
  if (!bound) {
    return Error{intro + "cannot be made: " + ErrnoText(bind_error) + "; " + correct +
                 " or its folder's permissions."};
  }
  if (!plan.group.empty()) {
    const struct group* found = getgrnam(plan.group.c_str());
    if (found == nullptr) {
      return Error{"The group \"" + plan.group + "\" of " + plan.group_key +
                   " does not exist; create it or correct " + plan.group_key + "."};
    }
    if (chown(plan.path.c_str(), uid_t(-1), found->gr_gid) != 0) {
      return Error{intro + "cannot be given to group " + plan.group + ": " + ErrnoText() +
                   "; run causewayd as root or correct " + plan.group_key + "."};
    }
  }
  if (chmod(plan.path.c_str(), plan.mode) != 0 || listen(listener.get(), kBacklog) != 0)
    return Error{intro + "cannot be opened to clients: " + ErrnoText() + "."};
  return listener;
}

}  // namespace causeway::daemon
