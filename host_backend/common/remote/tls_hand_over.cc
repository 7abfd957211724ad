// SPDX-License-Identifier: Apache-2.0
#include "host_backend/common/remote/tls_hand_over.h"

#include <poll.h>
#include <sys/socket.h>

#include "ivshmem_ring/transport/packet.h"

namespace causeway {

bool SendTlsStream(int to, const TlsTraffic& traffic, int socket) {
  const TlsHandOver message{kTlsHandOverMagic, traffic};
  return SendPacket(to, &message, sizeof message, std::span(&socket, 1));
}

Result<TlsStream> ReceiveTlsStream(int from) {
  constexpr int kPatienceMs = 10'000;
  pollfd ready{from, POLLIN, 0};
  if (poll(&ready, 1, kPatienceMs) != 1)
    return Error{"causeway-tls did not hand the guest's connection over within 10 s"};
  TlsHandOver message{};
  int descriptor = -1, flags = 0;
  const ssize_t got = ReceivePacket(from, &message, sizeof message, std::span(&descriptor, 1), 0, &flags);
  TlsStream stream;
  stream.socket.reset(descriptor);
  int type = 0;
  socklen_t length = sizeof type;
  // What is cut, by bytes or by descriptors, is another message.
  if (got != ssize_t(sizeof message) || (flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      message.magic != kTlsHandOverMagic || !stream.socket ||
      getsockopt(stream.socket.get(), SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_STREAM)
    return Error{"causeway-tls handed no connection over: the guest has left, or it is of another version"};
  stream.records = TlsRecords::Make(message.traffic);
  if (stream.records == nullptr) return Error{"libcrypto refuses the cipher of the guest's connection"};
  return stream;
}

}  // namespace causeway
