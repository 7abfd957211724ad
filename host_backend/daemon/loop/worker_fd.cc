// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/loop/worker_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>

#include "ivshmem_ring/transport/packet.h"

namespace causeway::daemon {

ssize_t ReceiveFromStranger(int socket, void* bytes, size_t room, std::vector<WorkerFd>* descriptors,
                            int* got_flags, const ClosingAccountRef& account) {
  std::array<int, kMostDescriptors> numbers;
  const ssize_t got = ReceivePacket(socket, bytes, room, numbers, MSG_DONTWAIT, got_flags);
  for (const int number : numbers) {
    if (number >= 0) descriptors->emplace_back(number, account);
  }
  return got;
}

bool IsOutOfDescriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

bool StatStranger(int descriptor, struct statx* info) {
  return statx(descriptor, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, info) == 0;
}

void RefuseDescriptors(int socket) {
  constexpr int kPassRights = 83;  // SO_PASSRIGHTS, which headers of older kernels lack
  const int off = 0;
  setsockopt(socket, SOL_SOCKET, kPassRights, &off, sizeof off);
}

}  // namespace causeway::daemon
