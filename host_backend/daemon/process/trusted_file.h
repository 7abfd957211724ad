// SPDX-License-Identifier: Apache-2.0
// Whether a file that was there already may be used: others may have made it, in a folder such as /dev/shm.
#pragma once
#include <sys/stat.h>

#include <string>

namespace causeway::daemon {

// "", or the reason against it and what to do, to follow "The file PATH ". `fd` is open on it, without having
// followed a link, and `found` is its fstat. What holds of the rest: a regular file with one name, of the
// daemon's user or root, or of `owner`, that no access list opens to others.
std::string WhyNotTrusted(int fd, const struct stat& found, const std::string& path, uid_t owner = 0);

}  // namespace causeway::daemon
