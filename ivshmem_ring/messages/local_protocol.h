// SPDX-License-Identifier: Apache-2.0
// The few messages on the daemon's UNIX socket (SOCK_SEQPACKET, one struct in a packet), and at the start of
// a TCP connection. Everything else crosses the region or, over TCP, travels as frames of the same records.
//
//   local session   The client sends LocalRequest{kOpenSession} and gets a LocalReply with the descriptor of
//                   the region (SCM_RIGHTS). It maps the region, fills OpenBlock and the guest page, sends
//                   the byte kLocalReady, and waits for the host's slot word. Closing the socket ends the
//                   session.
//   status          The client sends LocalRequest{kStatus} and gets a LocalReply, then a JSON text in packets
//                   of at most 64 KiB, then the end of the connection.
//   trace           The client sends a LocalTraceRequest and gets a LocalReply, then, in packets as above,
//                   the list of sessions as JSON. If a session was asked for, a NUL and its two FlightImages
//                   (layout.h) follow; guest_bytes and host_bytes in the list are their sizes.
// Within one kAbiMajor these messages grow at their ends: a receiver reads what it knows of a longer one.
//
//   TCP session     The client sends the bytes of an OpenBlock and gets those of a LocalReply; then both send
//                   frames of records (ivshmem_ring/tcp/tcp_transport.h). A question instead of a session has an answer
//                   that pool_messages.h describes.
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

inline constexpr uint64_t kTraceList = 0;             // the list alone
inline constexpr uint64_t kTraceLast = ~uint64_t{0};  // the session that began last

struct LocalTraceRequest {
  LocalRequest request;  // its kind is kTrace
  uint64_t session;      // the session's number in the list, or one of the values above
};
static_assert(sizeof(LocalTraceRequest) == 24);

struct LocalReply {
  uint64_t magic;
  uint32_t accepted;      // 1; or 0, and `text` says why not; or kAnswersOnly (pool_messages.h)
  uint32_t reserved;      // over TCP: kGrantsResume or kSessionGone (resume_messages.h)
  uint64_t region_bytes;  // 0 over TCP
  char text[488];  // NUL-terminated; with kGrantsResume a ResumeGrant; behind its place a CompressionGrant
};
static_assert(sizeof(LocalReply) == 512);

}  // namespace causeway
