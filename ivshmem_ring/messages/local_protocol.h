// SPDX-License-Identifier: Apache-2.0
// The few messages on the daemon's UNIX socket (SOCK_SEQPACKET, one struct a packet) and at the start of a
// TCP connection. Everything else crosses the region (or, over TCP, the same records as frames).
//
//   local session:  LocalRequest{kOpenSession} -> LocalReply + region fd (SCM_RIGHTS)
//                   the library maps it, fills OpenBlock and the guest page, sends one byte kLocalReady,
//                   then waits for the host's slot word; closing the socket ends the session
//   status:         LocalRequest{kStatus} -> LocalReply, then the JSON text in packets of at most 64 KiB,
//   then EOF
//   trace:          LocalTraceRequest -> LocalReply, then as for the status: the list of sessions as JSON
//   and, where one was asked for, NUL and its FlightImages (layout.h): guest_bytes and host_bytes in the list
//   say how large TCP session:    OpenBlock bytes -> LocalReply bytes, then record frames
//   (ivshmem_ring/tcp/tcp_transport.h)
#pragma once
#include <cstdint>

namespace causeway {

inline constexpr uint64_t kLocalMagic = 0x314c595745534143;
inline constexpr char kLocalReady = 'o';
inline constexpr char kDefaultSocketPath[] = "/run/causeway/causeway.sock";

enum class LocalRequestKind : uint32_t { kOpenSession = 1, kStatus = 2, kTrace = 3 };

struct LocalRequest {
  uint64_t magic;
  uint16_t abi_major;
  uint16_t abi_minor;
  LocalRequestKind kind;
};
static_assert(sizeof(LocalRequest) == 16);

inline constexpr uint64_t kTraceList = 0;             // only the list
inline constexpr uint64_t kTraceLast = ~uint64_t{0};  // of the session that began last

struct LocalTraceRequest {
  LocalRequest request;  // kTrace
  uint64_t session;      // its number in the list, or one of the above
};
static_assert(sizeof(LocalTraceRequest) == 24);

struct LocalReply {
  uint64_t magic;
  uint32_t accepted;  // 1, or 0 and `text` says why
  uint32_t reserved;
  uint64_t region_bytes;  // 0 over TCP
  char text[488];         // NUL-terminated
};
static_assert(sizeof(LocalReply) == 512);

}  // namespace causeway
