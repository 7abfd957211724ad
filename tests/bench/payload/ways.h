// SPDX-License-Identifier: Apache-2.0
// The ways that are compared, and the sizes that they have in common with a session of a remote guest.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ivshmem_ring/transport/record.h"

namespace causeway::payload {

// How a connection's bytes leave.
enum class Sends {
  kSend,           // send, which waits for room in the socket
  kZeroCopy,       // the same with MSG_ZEROCOPY
  kUringSend,      // IORING_OP_SEND
  kUringZeroCopy,  // IORING_OP_SEND_ZC from memory that the kernel has not seen before, as a program's memory is
  kUringRegistered,  // the same from memory that was registered when the ring was made
  kRecords           // in records of TLS 1.3, by send
};
// How they are received.
enum class Receives {
  kRecv,            // recv, a piece at a time
  kUringRecv,       // IORING_OP_RECV, two pieces in flight
  kUringMultishot,  // IORING_OP_RECV that stays and fills provided buffers
  kRecords
};

struct Way {
  const char* name;
  Sends sends;
  Receives receives;
  uint32_t connections;  // with a thread for each at both ends
};

inline constexpr Way kWays[] = {
    {"send", Sends::kSend, Receives::kRecv, 1},
    {"zerocopy", Sends::kZeroCopy, Receives::kRecv, 1},
    {"uring-send", Sends::kUringSend, Receives::kRecv, 1},
    {"uring-zc", Sends::kUringZeroCopy, Receives::kRecv, 1},
    {"uring-zc-registered", Sends::kUringRegistered, Receives::kRecv, 1},
    {"uring-recv", Sends::kSend, Receives::kUringRecv, 1},
    {"uring-multishot", Sends::kSend, Receives::kUringMultishot, 1},
    {"uring-both", Sends::kUringSend, Receives::kUringRecv, 1},
    {"send-2", Sends::kSend, Receives::kRecv, 2},
    {"send-4", Sends::kSend, Receives::kRecv, 4},
    {"tls", Sends::kRecords, Receives::kRecords, 1},
    {"tls-2", Sends::kRecords, Receives::kRecords, 2},
    {"tls-4", Sends::kRecords, Receives::kRecords, 4},
};
inline constexpr uint32_t kWayCount = sizeof kWays / sizeof kWays[0];
inline constexpr uint32_t kMostConnections = 4;

inline constexpr size_t kPieceBytes = kBulkBytes;
// So many staging buffers a copy has under way; several connections share them, and each has two at least.
inline constexpr uint32_t kPiecesUnderWay = 6;
constexpr uint32_t PiecesOf(uint32_t connections) {
  return connections * 2 > kPiecesUnderWay ? 2 : kPiecesUnderWay / connections;
}
static_assert(PiecesOf(kMostConnections) * kMostConnections <= kBulkBuffers);
// What a TLS connection seals, and receives, at once (ivshmem_ring/tcp/tcp_connection.cc).
inline constexpr size_t kWireBytes = 128u << 10;

}  // namespace causeway::payload
