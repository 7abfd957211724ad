// SPDX-License-Identifier: Apache-2.0
// Names of VMs, of Xen's domains and of keys.
#pragma once
#include <string>

namespace causeway {

// Whether `name` is a letter, digit or _, followed by these and . and -, at most 48 bytes in all. Such a name can become a part of
// file names and of libvirt's XML without being quoted.
inline bool IsPlainName(const std::string& name) {
  constexpr size_t kMostBytes = 48;
  return !name.empty() && name.size() <= kMostBytes && name[0] != '.' && name[0] != '-' &&
         name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
             std::string::npos;
}

}  // namespace causeway
