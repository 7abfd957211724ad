// SPDX-License-Identifier: Apache-2.0
// Packets of the daemon's socket, and what goes back.
#include <errno.h>
#include <sys/socket.h>

#include <algorithm>

#include "host_backend/launcher/launcher.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::launcher {

bool AnswerRequest(Launcher& launcher, int socket) {
  static struct {
    Request request;
    uint8_t unknown[kGrowth];
  } packet;
  int numbers[kMaxPacketDescriptors];
  packet = {};
  const Request& request = packet.request;
  int flags = 0;
  const ssize_t bytes = ReceivePacket(socket, &packet, sizeof packet, numbers, MSG_TRUNC, &flags);
  // A daemon that was killed with answers unread is told of first; what it had sent comes then, and its end last.
  if (bytes < 0) return errno == EINTR || errno == EAGAIN || errno == ECONNRESET;
  UniqueFd descriptors[kMaxPacketDescriptors];
  size_t count = 0;
  for (const int number : numbers) {
    if (number >= 0) descriptors[count++].reset(number);
  }
  if (bytes == 0) return false;
  UniqueFd handed;
  // What has lost descriptors on its way (there were too many, or this process can open no more) is not what was sent.
  const bool known = size_t(bytes) <= sizeof packet && (flags & MSG_CTRUNC) == 0 &&
                     std::ranges::all_of(packet.unknown, [](uint8_t each) { return each == 0; });
  const Answer answer =
      launcher.Handle(request, known ? size_t(bytes) : 0, std::span(descriptors, count), &handed);
  size_t sent = 0;
  if (handed) numbers[sent++] = handed.get();
  if (answer.error == 0 && request.action == Action::kTake) {
    for (const UniqueFd& each : launcher.Kept(request.number)) numbers[sent++] = each.get();
  }
  if (SendPacket(socket, &answer, sizeof answer, std::span(numbers, sent))) return true;
  // Other processes of this user have as many descriptors on their way as the kernel lets one have. What was
  // started is ended, because the daemon has no descriptor to watch it with.
  if (errno == EPIPE) return true;  // what it had sent before it ended is still done
  if (errno != ETOOMANYREFS) return false;
  if (request.action == Action::kStart) launcher.Abandon(answer.pid);
  Answer refused{};
  refused.error = ETOOMANYREFS;
  // By these the daemon ends what it cannot have.
  if (request.action == Action::kTake) refused.key = answer.key, refused.pid = answer.pid;
  return SendPacket(socket, &refused, sizeof refused, {});
}

}  // namespace causeway::launcher
