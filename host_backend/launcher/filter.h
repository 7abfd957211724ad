// SPDX-License-Identifier: Apache-2.0
// The launcher's system call filter. All processes that it starts inherit it, so it cannot be narrower than
// what a driver needs to start in a worker; the worker's own filter comes on top of it. It takes away from
// all of them for good: tracing, modules, BPF, other namespaces and mounts than those that workers have, and
// all user and group ids outside of the range.
#pragma once
#include <cstdint>
#include <string>

namespace causeway::launcher {

struct UserRange {
  uint32_t first = 0;
  uint32_t count = 0;  // 0: workers keep the launcher's user
  bool Has(uint32_t user) const { return user >= first && user - first < count; }
};

// Installs the filter in the calling thread, which must be the only one. Empty, or the name of what failed.
std::string InstallLauncherFilter(const UserRange& users);

}  // namespace causeway::launcher
