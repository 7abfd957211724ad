// SPDX-License-Identifier: Apache-2.0
// What the process of a TLS connection (host_backend/tls/connection.h) gives to the worker of its session: on the socket that the
// worker was assigned, once, this message with the guest's socket. From then on the worker reads and writes the guest's socket itself,
// and nothing else is said here: the end of either process ends the connection, and the session with it unless it waits for its guest
// (docs/remote.md, "Lost connections").
#pragma once
#include <cstdint>
#include <memory>

#include "host_backend/common/result.h"
#include "host_backend/common/unique_fd.h"
#include "ivshmem_ring/tls/tls_records.h"

namespace causeway {

inline constexpr uint64_t kTlsHandOverMagic = 0x31'53'4c'54'57'43'00'01;

struct TlsHandOver {
  uint64_t magic;
  TlsTraffic traffic;
};
static_assert(sizeof(TlsHandOver) == 96);

struct TlsStream {
  UniqueFd socket;
  std::unique_ptr<TlsRecords> records;
};

// False: it was not sent.
bool SendTlsStream(int to, const TlsTraffic& traffic, int socket);
// Waits for it, at most 10 s. The sender is not trusted.
Result<TlsStream> ReceiveTlsStream(int from);

}  // namespace causeway
