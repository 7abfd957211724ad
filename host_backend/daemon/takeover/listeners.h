// SPDX-License-Identifier: Apache-2.0
// Listening sockets that one daemon leaves to the next, so that clients who connect meanwhile wait instead of failing.
#pragma once
#include <cstdint>
#include <string>

#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/takeover/vault.h"

namespace causeway::daemon {

// The socket that a daemon of before had at that path, or at an address that has no file (`kAddress`). Empty: there is none, or the
// path has none any more.
enum class PlaceKind : uint8_t { kPath, kAddress };
WorkerFd TakeListener(Vault& vault, const std::string& path, uint64_t* key,
                      PlaceKind kind = PlaceKind::kPath);
// How the places begin that are addresses.
inline constexpr char kTcpPlace[] = "tcp://";
// Closes the sockets that a daemon of before had at other addresses than `place`, so that their ports are free when this returns.
void EndOtherAddresses(Vault& vault, const std::string& place);
// Repeatable. `key` is 0 or as TakeListener or this has set it.
void KeepListenerRecord(Vault& vault, const std::string& path, int listener, uint64_t* key);

}  // namespace causeway::daemon
