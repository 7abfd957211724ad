// SPDX-License-Identifier: Apache-2.0
// What causeway-tls (host_backend/tls) tells causewayd of a guest that has proved its key, on a connection of its own to the
// daemon's hand-over socket: this message first, then the guest's opening message, decrypted, and the daemon's answer, as over TCP.
// What follows on it goes to the session's worker (tls_hand_over.h).
//
// On the same socket causeway-tls says which keys are good no more: as many KeyEnded as there are, and then the end of the connection.
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

// The same with the key's id (ivshmem_ring/tls/key_file.h), by which a guest that has lost its connection is known again.
// A daemon takes both.
inline constexpr uint64_t kKeyHandOverMagic = 0x32'52'45'56'4f'57'43'00;
struct KeyHandOver {
  RemoteHandOver who;  // with kKeyHandOverMagic
  char id[40];
};
static_assert(sizeof(KeyHandOver) == 240);

// That key was revoked, has expired, or is gone: its sessions end, also those that wait for their guest.
inline constexpr uint64_t kKeyEndedMagic = 0x31'44'4e'45'4b'57'43'00;
struct KeyEnded {
  uint64_t magic;
  char id[40];
};
static_assert(sizeof(KeyEnded) == 48);

// Where causewayd takes such connections if its configuration does not say.
inline std::string HandOverSocketOf(const std::string& socket) {
  return socket + ".tls";
}

}  // namespace causeway
