// SPDX-License-Identifier: Apache-2.0
// What causeway-tls (host_backend/tls) tells causewayd of a guest that has proved its key, on a connection of its own to the
// daemon's hand-over socket: this message first, then the guest's opening message, decrypted, and the daemon's answer, as over TCP.
// What follows on it goes to the session's worker (tls_hand_over.h).
#pragma once
#include <cstdint>
#include <string>

namespace causeway {

inline constexpr uint64_t kHandOverMagic = 0x31'52'45'56'4f'57'43'00;

// Texts end with a zero byte.
struct RemoteHandOver {
  uint64_t magic;
  char vm[64];    // whose sessions it has
  char key[64];   // the key's name
  char peer[64];  // the address, for the log
};
static_assert(sizeof(RemoteHandOver) == 200);

// Where causewayd takes such connections if its configuration does not say.
inline std::string HandOverSocketOf(const std::string& socket) {
  return socket + ".tls";
}

}  // namespace causeway
