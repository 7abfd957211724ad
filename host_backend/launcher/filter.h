// SPDX-License-Identifier: Apache-2.0
// The launcher's system call filter. Whatever it starts inherits it, so it cannot be narrower than what a
// driver needs that starts in a worker; the worker's own filter comes on top of it. What it takes away from
// all of them for good: tracing, modules, BPF, other namespaces and mounts than those that workers have, and
// any user or group id outside of the range.
#pragma once
#include <cstdint>
#include <string>

namespace causeway::launcher {

struct UserRange {
  uint32_t first = 0;
  uint32_t count = 0;  // 0: workers keep the launcher's user
  bool Has(uint32_t user) const { return user >= first && user - first < count; }
};

// Of this thread, the only one. "" or the name of what went wrong.
std::string InstallLauncherFilter(const UserRange& users);

}  // namespace causeway::launcher
