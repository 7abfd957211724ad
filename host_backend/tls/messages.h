// SPDX-License-Identifier: Apache-2.0
// What the listener and the process of one connection say to each other, on a socket pair that keeps messages apart. The process
// of a connection reads bytes of strangers, so the listener takes nothing from it but these, and each at most once.
//
//   connection -> listener   kSecret  the peer names a key: may it, and what is its secret?    -> TlsAnswer
//   connection -> listener   kProved  the peer has proved it                                   -> TlsAnswer, with the daemon's socket
//   connection -> listener   kFailed  the handshake failed, `text` says how; the process ends  -> nothing
#pragma once
#include <cstdint>

#include "ivshmem_ring/tls/key_file.h"

namespace causeway::tls {

// The descriptors of a connection's process.
inline constexpr int kPeerFd = 3;
inline constexpr int kListenerFd = 4;

enum class Word : uint32_t { kSecret = 1, kProved = 2, kFailed = 3 };

struct TlsQuestion {
  Word word;
  char id[kKeyIdDigits + 1];  // kSecret
  char text[123];             // kFailed; ends with a zero byte
};
static_assert(sizeof(TlsQuestion) == 160);

struct TlsAnswer {
  uint32_t accepted;
  uint8_t secret[kKeySecretBytes];
  char text[220];  // kProved, where it is not accepted: why
};
static_assert(sizeof(TlsAnswer) == 256);

}  // namespace causeway::tls
