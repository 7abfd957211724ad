// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/takeover/listeners.h"

#include <sys/stat.h>

namespace causeway::daemon {

WorkerFd TakeListener(Vault& vault, const std::string& path, uint64_t* key, PlaceKind kind) {
  const auto is_there = [&] {
    struct stat found {};
    return kind == PlaceKind::kAddress || (lstat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode));
  };
  for (Vault::Record* record : vault.All(Vault::Kind::kListener)) {
    if (record->state.at("path") != path || !is_there()) continue;
    WorkerFd listener(record->Take("listener"));
    *key = vault.Adopt(*record).key;
    return listener;
  }
  return {};
}

void EndOtherAddresses(Vault& vault, const std::string& place) {
  bool any = false;
  for (Vault::Record* record : vault.All(Vault::Kind::kListener)) {
    const auto path = record->state.at("path").get<std::string>();
    if (!path.starts_with(kTcpPlace) || path == place) continue;
    Vault::Record old = vault.Adopt(*record);
    vault.Drop(old.key);
    any = true;
  }
  if (any) vault.AwaitAll();
}

void KeepListenerRecord(Vault& vault, const std::string& path, int listener, uint64_t* key) {
  if (*key != 0) return;
  *key = vault.NewKey(Vault::Kind::kListener);
  vault.Put(*key, {{"path", path}}, {{"listener", listener}});
}

}  // namespace causeway::daemon
