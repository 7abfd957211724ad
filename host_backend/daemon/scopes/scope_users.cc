// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/scopes/scope_users.h"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>

namespace causeway::daemon {
namespace {

bool HasCapability(unsigned capability) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  return syscall(SYS_capget, &header, data) == 0 &&
         (data[capability / 32].effective >> (capability % 32) & 1) != 0;
}

// In a container most ids may be unknown.
bool IsMapped(const char* path, uint64_t first, uint64_t count) {
  std::ifstream map(path);
  for (uint64_t inside = 0, outside = 0, length = 0; map >> inside >> outside >> length;) {
    if (first >= inside && first + count <= inside + length) return true;
  }
  return false;
}

// FNV-1a: where the scope's user is looked for first, so that it mostly is the one it had before.
uint64_t Hash(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

ScopeUsers::ScopeUsers(uint32_t first, uint32_t count) : first_(first), count_(count) {
  if (count_ == 0) {
    problem_ = "worker_uids is empty";
  } else if (!HasCapability(CAP_SETUID) || !HasCapability(CAP_SETGID)) {
    problem_ = "causewayd has no right to change users";
  } else if (!IsMapped("/proc/self/uid_map", first_, count_) ||
             !IsMapped("/proc/self/gid_map", first_, count_)) {
    problem_ = "the user namespace of causewayd lacks the ids of worker_uids";
  }
}

Result<uint32_t> ScopeUsers::Join(const std::string& scope) {
  if (!possible()) return uint32_t{0};
  if (const auto known = scopes_.find(scope); known != scopes_.end()) {
    ++known->second.workers;
    return known->second.user;
  }
  if (users_.size() >= count_) {
    return Error{
        "All " + std::to_string(count_) +
        " user ids for workers are taken; raise the count of worker_uids in the configuration of causewayd."};
  }
  uint32_t user = first_ + uint32_t(Hash(scope) % count_);
  while (users_.contains(user)) user = user + 1 == first_ + count_ ? first_ : user + 1;
  users_[user] = scope;
  scopes_[scope] = {user, 1};
  return user;
}

bool ScopeUsers::Rejoin(const std::string& scope, uint32_t user) {
  const auto known = scopes_.find(scope);
  if (known != scopes_.end()) {
    if (known->second.user == user) ++known->second.workers;
    return known->second.user == user;
  }
  if (user < first_ || user - first_ >= count_ || !users_.emplace(user, scope).second) return false;
  scopes_[scope] = {user, 1};
  return true;
}

void ScopeUsers::Leave(const std::string& scope) {
  const auto known = scopes_.find(scope);
  if (known == scopes_.end() || --known->second.workers != 0) return;
  users_.erase(known->second.user);
  scopes_.erase(known);
}

}  // namespace causeway::daemon
