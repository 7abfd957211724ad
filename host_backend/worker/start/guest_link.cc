// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/start/guest_link.h"

#include <sys/socket.h>

#include <utility>
#include <vector>

#include "host_backend/common/remote/tls_hand_over.h"
#include "ivshmem_ring/messages/resume_messages.h"

namespace causeway::host {
namespace {

// The first that the guest gets on its connection, for which there is room in any socket.
bool Greet(uint64_t received, const FreshSocket& fresh) {
  const ResumeGreeting greeting{kResumeMagic, received};
  const std::span<const std::byte> plain = std::as_bytes(std::span(&greeting, 1));
  std::vector<std::byte> wire(plain.begin(), plain.end());
  if (fresh.layer != nullptr) {
    if (!fresh.layer->Seal(plain)) return false;
    fresh.layer->TakeOutput(wire);
  }
  return send(fresh.fd, wire.data(), wire.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == ssize_t(wire.size());
}

// By the thread that keeps the connection.
bool Take(UniqueFd& from, bool encrypted, uint64_t received, FreshSocket* fresh, std::string* why) {
  if (!encrypted) {
    fresh->fd = from.release();
  } else {
    Result<TlsStream> stream = ReceiveTlsStream(from.get());
    if (!stream.ok()) {
      *why = stream.error();
      return false;
    }
    fresh->fd = stream.value().socket.release();
    fresh->layer = std::move(stream.value().records);
  }
  if (Greet(received, *fresh)) return true;
  *why = "its next connection was lost at once";
  return false;
}

}  // namespace

GuestLink::GuestLink(const ReceivedAssignment& received, TcpServer* stream)
    : stream_(stream), encrypted_(received.assignment.kind == AssignmentKind::kTls) {
  if (const int client = ClientSocket(received); client >= 0) client_ = std::make_shared<UniqueFd>(client);
}

// Of an encrypted connection the bytes on this socket are another thread's.
pollfd GuestLink::Watched() const {
  return {client_ != nullptr ? client_->get() : -1, short(encrypted_ ? POLLRDHUP : POLLIN), 0};
}

bool GuestLink::StillThere(const pollfd& polled) {
  if (client_ == nullptr || polled.fd != client_->get()) return true;  // another one has come
  char byte;
  const bool gone =
      (polled.revents & (POLLHUP | POLLERR | POLLRDHUP)) != 0 ||
      ((polled.revents & POLLIN) != 0 && !encrypted_ && recv(polled.fd, &byte, 1, MSG_DONTWAIT) == 0);
  if (!gone) return true;
  if (stream_ == nullptr || !stream_->waits()) return false;
  client_.reset();
  stream_->Break("causeway-tls has ended the connection");
  return true;
}

void GuestLink::Resume(const WorkerResume& message, UniqueFd descriptor) {
  if (stream_ == nullptr || !stream_->waits() || !descriptor) return;
  const uint64_t received = message.received[0] | uint64_t{message.received[1]} << 32;
  auto socket = std::make_shared<UniqueFd>(std::move(descriptor));
  client_ = encrypted_ ? socket : nullptr;
  stream_->Offer([socket, encrypted = encrypted_, received](uint64_t host_received, FreshSocket* fresh,
                                                            std::string* why) {
    fresh->peer_received = received;
    return Take(*socket, encrypted, host_received, fresh, why);
  });
}

}  // namespace causeway::host
