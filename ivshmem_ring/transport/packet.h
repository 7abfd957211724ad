// SPDX-License-Identifier: Apache-2.0
// Packets with descriptors on a UNIX socket (SOCK_SEQPACKET): between daemon and guests, workers, launcher.
#pragma once
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <span>

namespace causeway {

inline constexpr size_t kMaxPacketDescriptors = 6;  // the most that this project sends in one packet
// As many as the kernel carries in one packet (SCM_MAX_FD): room for whatever a peer sends.
inline constexpr size_t kMostDescriptors = 253;

// False: the packet was not sent, and errno says why. The caller keeps its descriptors.
inline bool SendPacket(int socket, const void* bytes, size_t count, std::span<const int> descriptors,
                       int flags = 0) {
  if (descriptors.size() > kMostDescriptors) return false;
  iovec part{const_cast<void*>(bytes), count};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int) * kMostDescriptors)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = space;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  return sendmsg(socket, &message, flags | MSG_NOSIGNAL) == static_cast<ssize_t>(count);
}

// Returns what recvmsg does. The caller owns the received descriptors. The kernel closes those for which
// `descriptors` has no room; missing ones are -1. *got_flags, if not null, gets recvmsg's msg_flags.
inline ssize_t ReceivePacket(int socket, void* bytes, size_t room, std::span<int> descriptors, int flags = 0,
                             int* got_flags = nullptr) {
  std::fill(descriptors.begin(), descriptors.end(), -1);
  iovec part{bytes, room};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int) * kMostDescriptors)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = CMSG_LEN(std::min(descriptors.size(), kMostDescriptors) * sizeof(int));
  const ssize_t got = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  if (got_flags != nullptr) *got_flags = message.msg_flags;
  if (got < 0) return got;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    std::memcpy(descriptors.data(), CMSG_DATA(header),
                std::min<size_t>(header->cmsg_len - CMSG_LEN(0), descriptors.size_bytes()));
  }
  return got;
}

}  // namespace causeway
