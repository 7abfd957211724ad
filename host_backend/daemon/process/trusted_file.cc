// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/process/trusted_file.h"

#include <sys/xattr.h>
#include <unistd.h>

namespace causeway::daemon {

std::string WhyNotTrusted(int fd, const struct stat& found, const std::string& path, uid_t owner) {
  if (!S_ISREG(found.st_mode)) return "is not a regular file; name another.";
  if (found.st_uid != geteuid() && found.st_uid != 0 && found.st_uid != owner) {
    return "belongs to user " + std::to_string(found.st_uid) +
           ", who could have made it to read and write what is in it; delete it, so that causewayd makes it "
           "itself, or run `chown " +
           std::to_string(geteuid()) + " " + path + "` if it is as it should be.";
  }
  if (found.st_nlink != 1) {
    return "has " + std::to_string(found.st_nlink) +
           " names, so that it may be open to others under another one; delete it, so that causewayd makes "
           "it "
           "itself.";
  }
  if (fgetxattr(fd, "system.posix_acl_access", nullptr, 0) > 0) {
    return "has an access list, which may open it to others; run `setfacl -b " + path +
           "` and give access by its group.";
  }
  return {};
}

}  // namespace causeway::daemon
