// SPDX-License-Identifier: Apache-2.0
// doorbell_echo SOCKET CAUSEWAYD: the host's half of a bare round trip through an ivshmem-doorbell device. It stands between
// one QEMU, which connects to SOCKET, and the doorbell that causewayd has at CAUSEWAYD, and passes on what causewayd says, but for
// the work vector: that one is its own, and each ring of it is answered by an interrupt of the guest, by nothing else.
// Ends with the connection. Exit status: 1 the connection could not be made.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <utility>

#include "host_backend/common/unique_fd.h"
#include "ivshmem_ring/transport/packet.h"

namespace {

using causeway::UniqueFd;
constexpr int kMessages = 6, kWork = 3,
              kGuest = 5;  // version, peer, memory, work, control, guest (doorbell.cc)

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

UniqueFd Connect(const std::string& path) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = AddressOf(path);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  return socket;
}

UniqueFd AcceptOne(const std::string& path) {
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = AddressOf(path);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener.get(), 1) != 0)
    return {};
  return UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

// The messages of the protocol, with `work` in the place of causewayd's. False: one side has gone.
bool PassOn(int daemon, int qemu, const UniqueFd& work, UniqueFd* guest) {
  for (int i = 0; i < kMessages; ++i) {
    int64_t number = 0;
    int received = -1;
    if (causeway::ReceivePacket(daemon, &number, sizeof number, std::span(&received, 1)) != sizeof number)
      return false;
    UniqueFd descriptor(received);
    const int sent = i == kWork ? work.get() : descriptor.get();
    const std::span<const int> with(&sent, sent >= 0 ? 1 : 0);
    if (!causeway::SendPacket(qemu, &number, sizeof number, with, 0)) return false;
    if (i == kGuest) *guest = std::move(descriptor);
  }
  return bool(*guest);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const UniqueFd qemu = AcceptOne(arguments[1]), daemon = Connect(arguments[2]),
                 work(eventfd(0, EFD_CLOEXEC));
  UniqueFd guest;
  if (!qemu || !daemon || !work || !PassOn(daemon.get(), qemu.get(), work, &guest)) {
    std::perror("doorbell_echo");
    return 1;
  }
  prctl(PR_SET_TIMERSLACK, 1000);  // ns, as of the daemon's thread
  pollfd asked[] = {{work.get(), POLLIN, 0}, {qemu.get(), POLLIN, 0}};
  while (poll(asked, 2, -1) > 0 && asked[1].revents == 0) {
    uint64_t rings = 0, one = 1;
    if (read(work.get(), &rings, sizeof rings) != sizeof rings) continue;
    if (write(guest.get(), &one, sizeof one) != sizeof one) return 1;
  }
}
