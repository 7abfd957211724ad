// SPDX-License-Identifier: Apache-2.0
// The way in through the daemon's socket: a memfd that only this process and its worker share.
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "guest_lib/connection/local_slices.h"
#include "guest_lib/connection/region_connection.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/transport/packet.h"
#include "ivshmem_ring/transport/ring.h"

namespace causeway::guest {
namespace {

class LocalConnection : public RegionConnection {
 public:
  LocalConnection(int region, SessionKind kind, int socket)
      : RegionConnection(region, kind), socket_(socket) {}
  ~LocalConnection() override {
    if (socket_ >= 0) close(socket_);
  }

  bool Enter(std::string* error) {
    if (!Map(0, true, error)) return false;
    session_ = 1;
    auto* guest = reinterpret_cast<GuestPage*>(granule0_ + kGuestPageOffset);
    slices_ = std::make_unique<LocalSlices>(fd_, reinterpret_cast<uint16_t*>(granule0_ + kOwnerTableOffset),
                                            region_bytes);
    FillOpenBlock();
    guest->pid[0] = static_cast<uint32_t>(getpid());
    guest->uid[0] = static_cast<uint32_t>(getuid());
    StoreRelease(guest->slot[0], SlotWord(session_, static_cast<uint32_t>(SlotGuestState::kOpen)));
    if (send(socket_, &kLocalReady, 1, MSG_NOSIGNAL) != 1) {
      *error = std::string("causewayd closed the connection: ") + strerror(errno);
      return false;
    }
    if (!AwaitHost(error)) return false;
    MakeTransport(true);
    return true;
  }

  bool AllocateSlices(uint64_t bytes, uint64_t* offset, bool* zeroed) override {
    uint64_t first = 0;
    if (!slices_->Allocate((bytes + kGranuleBytes - 1) / kGranuleBytes, &first, zeroed)) return false;
    *offset = first * kGranuleBytes;
    return true;
  }

  void FreeSlices(uint64_t offset, uint64_t bytes) override {
    UnmapSlices(offset, bytes);
    slices_->Free(offset / kGranuleBytes, bytes / kGranuleBytes);
  }

  void Abandon() override {
    RegionConnection::Abandon();
    if (socket_ >= 0) close(socket_);
    socket_ = -1;
  }

  // Ends the session and leaves the descriptors to the process's end: a thread may be waiting on them.
  void End(Ending) override { shutdown(socket_, SHUT_RDWR); }

 protected:
  std::string LinkLoss() override {
    char byte;
    const ssize_t got = recv(socket_, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
      return "the worker or causewayd has ended";
    return {};
  }

  // Daemon, launcher and worker have its other end, and no worker outlives both of the others.
  bool LinkTellsAll() override { return true; }

 private:
  int socket_;
  std::unique_ptr<LocalSlices> slices_;
};

// Receives the reply and the region's descriptor; -1 on refusal.
int ReceiveRegion(int socket, LocalReply* reply) {
  int fd = -1;
  ssize_t got;
  do {
    got = ReceivePacket(socket, reply, sizeof *reply, {&fd, 1});
  } while (got < 0 && errno == EINTR);
  if (got == 0 || (got < 0 && errno == ECONNRESET)) {
    // Also when it was killed: a worker that it was about to start holds its socket for a moment.
    snprintf(reply->text, sizeof reply->text, "it ended before it answered (is causewayd running?)");
    return -1;
  }
  if (got < 0) {
    snprintf(reply->text, sizeof reply->text, "no answer: %s", strerror(errno));
    return -1;
  }
  if (got != static_cast<ssize_t>(sizeof *reply) || reply->magic != kLocalMagic) {
    snprintf(reply->text, sizeof reply->text, "it does not speak this protocol");
    return -1;
  }
  return reply->accepted == 1 ? fd : -1;
}

}  // namespace

std::unique_ptr<Connection> ConnectLocal(const std::string& path, SessionKind kind, std::string* error) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    *error = "the socket path '" + path + "' is longer than " + std::to_string(sizeof address.sun_path - 1) +
             " bytes";
    return nullptr;
  }
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int socket_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const timeval patience{10, 0};  // the daemon answers at once; only opening the slot may take longer
  setsockopt(socket_fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const LocalRequest request{kLocalMagic, kAbiMajor, kAbiMinor, LocalRequestKind::kOpenSession};
  if (socket_fd < 0 ||
      TEMP_FAILURE_RETRY(connect(socket_fd, reinterpret_cast<sockaddr*>(&address), sizeof address)) != 0 ||
      TEMP_FAILURE_RETRY(send(socket_fd, &request, sizeof request, MSG_NOSIGNAL)) !=
          static_cast<ssize_t>(sizeof request)) {
    *error = "cannot reach causewayd at " + path + ": " + strerror(errno);
    if (errno == EACCES) *error += " (is this user in the socket's group?)";
    if (errno == ENOENT || errno == ECONNREFUSED) *error += " (is causewayd running?)";
    if (socket_fd >= 0) close(socket_fd);
    return nullptr;
  }
  LocalReply reply{};
  const int region = ReceiveRegion(socket_fd, &reply);
  if (region < 0) {
    reply.text[sizeof reply.text - 1] = '\0';
    *error = "causewayd at " + path + " refused the session: " + reply.text;
    close(socket_fd);
    return nullptr;
  }
  auto connection = std::make_unique<LocalConnection>(region, kind, socket_fd);
  if (!connection->Enter(error)) return nullptr;
  return connection;
}

}  // namespace causeway::guest
