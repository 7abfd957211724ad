// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/start/worker_assignment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "host_backend/common/remote/tls_hand_over.h"
#include "host_backend/granted/event_channel.h"
#include "host_backend/granted/sleep_word.h"
#include "host_backend/sandbox/filter.h"
#include "host_backend/worker/process/output.h"
#include "ivshmem_ring/release/build_stamp.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::host {

bool ReceiveAssignment(int control, const std::function<void(const WorkerScope&)>& belong,
                       ReceivedAssignment* received) {
  int fds[kMaxPacketDescriptors];
  WorkerScope scope;
  ssize_t got;
  WorkerLongAssignment said{};
  do {
    got = ReceivePacket(control, &said, sizeof said, fds);
    if (got != static_cast<ssize_t>(sizeof scope)) continue;
    std::memcpy(&scope, &said, sizeof scope);
    belong(scope);
  } while ((got < 0 && errno == EINTR) || got == static_cast<ssize_t>(sizeof scope));
  const bool is_long = got == static_cast<ssize_t>(sizeof said);
  if (!is_long && got != static_cast<ssize_t>(sizeof said.assignment)) return false;
  received->assignment = said.assignment;
  received->grace_s = is_long ? said.grace_s : 0;
  received->compresses = is_long && said.compresses != 0;
  received->account_fd = fds[0];
  received->account_reading_fd = fds[1];
  std::copy(fds + 2, std::end(fds), received->fds);
  return received->account_fd >= 0 && received->account_reading_fd >= 0 && received->fds[0] >= 0;
}

namespace {

AccountPage* MapAccount(ReceivedAssignment* received, std::string* error) {
  AccountPage* page = MapAccountPage(received->account_fd, received->account_reading_fd,
                                     received->assignment.account_cell, error);
  // Before the guest is looked at: with the first of them a worker could map the cells of others.
  close(std::exchange(received->account_fd, -1));
  close(std::exchange(received->account_reading_fd, -1));
  return page;
}

FlightImage* MapFlight(const ReceivedAssignment& received) {
  if (received.assignment.has_flight == 0) return nullptr;
  const bool region = received.assignment.kind == AssignmentKind::kRegion;
  const int fd =
      received.fds[!region                                                                           ? 1
                   : received.assignment.has_client_socket != 0 || received.assignment.has_bell != 0 ? 3
                                                                                                     : 2];
  void* image = mmap(nullptr, sizeof(FlightImage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return image != MAP_FAILED ? static_cast<FlightImage*>(image) : nullptr;
}

// Of granted memory's one session; it lasts as long as the process.
const SleepWord* sleep_word = nullptr;

bool MapRegion(const ReceivedAssignment& received, RegionView* view, std::string* error) {
  // Where the filter expects it: no other call of this process can name it, or make another of it.
  view->fd = dup3(received.fds[0], sandbox::kRegionDescriptor, O_CLOEXEC);
  close(received.fds[0]);
  view->bytes = received.assignment.region_bytes;
  view->slot = received.assignment.slot;
  struct stat info;
  // Granted memory is a device's, which has no size; mmap refuses what it lacks.
  if (fstat(view->fd, &info) != 0 ||
      (!S_ISCHR(info.st_mode) && static_cast<uint64_t>(info.st_size) < view->bytes) ||
      view->bytes < kMinRegionBytes || view->slot >= SlotCount(view->bytes)) {
    *error = "the region file is smaller than the session that was assigned";
    return false;
  }
  view->granted = S_ISCHR(info.st_mode);
  // Granted memory has no descriptor for reading alone: a sleep word comes in its place (worker_control.h).
  UniqueFd second(received.fds[1]);
  const int reading = view->granted ? view->fd : second.get();
  // Other slots' addresses are taken and hold nothing.
  const uint64_t reserved_bytes = FirstSliceOffset(SlotCount(view->bytes));
  void* base = mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base != MAP_FAILED) view->base = static_cast<std::byte*>(base);
  const uint64_t own = SlotOffset(view->slot);
  if (view->base == nullptr ||
      mmap(base, kGranuleBytes, PROT_READ, MAP_SHARED | MAP_FIXED, reading, 0) == MAP_FAILED ||
      mmap(view->base + own, kGranuleBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, view->fd,
           static_cast<off_t>(own)) == MAP_FAILED) {
    *error = std::string("cannot map the region: ") + strerror(errno);
    return false;
  }
  if (view->granted) sleep_word = SleepWord::Of(std::move(second)).release();
  // As the daemon has checked it: the guest may have written another into its OpenBlock since.
  view->window_address = received.assignment.window_address;
  if (view->window_address % kGranuleBytes != 0 || view->window_address < (uint64_t{1} << 32) ||
      view->window_address > (uint64_t{1} << 47) - view->bytes) {
    *error = "the guest asks for an impossible address window";
    return false;
  }
  return true;
}

// Interrupts the guest, whose kernel wakes the threads that sleep: by an eventfd, or by the port of an event channel.
class VmBell : public Bell {
 public:
  VmBell(int bell, bool channel, uint32_t port) : bell_(bell), channel_(channel), port_(port) {}
  void Sleep(const HotWord&, uint32_t, uint64_t) const override {}  // the daemon wakes this side
  void Ring() const override {
    if (channel_) return RingChannel(bell_, port_);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(bell_, &one, sizeof one);
  }

 private:
  const int bell_;
  const bool channel_;
  const uint32_t port_;
};

}  // namespace

int ClientSocket(const ReceivedAssignment& received) {
  if (received.assignment.kind == AssignmentKind::kTls) return received.fds[0];
  return received.assignment.has_client_socket != 0 ? received.fds[2] : -1;
}

bool MapSession(ReceivedAssignment* received, RegionView* view, AccountPage** page, FlightImage** flight,
                std::string* error) {
  *page = MapAccount(received, error);
  *flight = MapFlight(*received);
  return *page != nullptr &&
         (received->assignment.kind != AssignmentKind::kRegion || MapRegion(*received, view, error));
}

namespace {

// What the connection's process hands over; without it, a session that is over.
std::unique_ptr<TcpServer> OpenTls(int from, FlightImage* flight, WaitForGuest waiting,
                                   Compression compression) {
  Result<TlsStream> stream = ReceiveTlsStream(from);
  if (stream.ok())
    return std::make_unique<TcpServer>(stream.value().socket.release(), flight,
                                       std::move(stream.value().records), std::move(waiting), compression);
  dprintf(Output::LogFd(), "causeway-worker[%d]: the session ends: %s\n", getpid(), stream.error().c_str());
  auto ended = std::make_unique<TcpServer>(fcntl(from, F_DUPFD_CLOEXEC, 0), flight);
  ended->Stop();
  return ended;
}

std::unique_ptr<TcpServer> OpenStream(const ReceivedAssignment& received, int control, FlightImage* flight) {
  WaitForGuest waiting;
  waiting.grace_s = received.grace_s;
  waiting.tell = [control](bool waits) {
    const WorkerLink link{waits ? 1u : 0u, {}};
    send(control, &link, sizeof link, MSG_NOSIGNAL);  // the daemon reads it, or ends this process
  };
  const Compression compression{.agreed = received.compresses};
  if (received.assignment.kind == AssignmentKind::kTls)
    return OpenTls(received.fds[0], flight, std::move(waiting), compression);
  return std::make_unique<TcpServer>(received.fds[0], flight, nullptr, std::move(waiting), compression);
}

}  // namespace

std::unique_ptr<ServerTransport> OpenTransport(const ReceivedAssignment& received, int control,
                                               const RegionView& view, FlightImage* flight,
                                               decltype(RingServerOptions::resolve) resolve,
                                               TcpServer** stream) {
  *stream = nullptr;
  if (received.assignment.kind != AssignmentKind::kRegion) {
    auto transport = OpenStream(received, control, flight);
    *stream = transport.get();
    return transport;
  }
  RingServerOptions options;
  options.slot = view.base + SlotOffset(view.slot);
  options.futex = received.assignment.has_client_socket != 0;
  options.sleep = sleep_word;
  options.watched = !options.futex && (!view.granted || sleep_word != nullptr);
  if (received.assignment.has_bell != 0) {
    // A worker has one session.
    static const VmBell bell(received.fds[2], view.granted, received.assignment.has_bell);
    options.bell = &bell;
  }
  options.flight = flight;
  options.resolve = std::move(resolve);
  return std::make_unique<RingServer>(std::move(options));
}

void SayServing(const RegionView& view) {
  if (view.base == nullptr) return;
  auto* control = reinterpret_cast<HostControl*>(view.base + SlotOffset(view.slot) + kHostControlOffset);
  StoreRelease(control->ready, 1);
}

bool SendReady(int control, const std::string& error, const std::string& library, WorkerReady* ready,
               std::span<const NamedDevice> devices) {
  ready->failed = error.empty() ? 0 : 1;
  snprintf(ready->text, sizeof ready->text, "%s", error.empty() ? library.c_str() : error.c_str());
  if (error.empty() && !devices.empty()) NameDevices(devices, ready);
  ready->api_hash = kBuildStamp.api_hash;
  ready->control_version = kWorkerControl;
  ready->features |= kAsksAgain | kTellsDevices | kWaitsForGuests | kCompresses;
  memcpy(ready->release, kBuildStamp.release, sizeof ready->release);
  return send(control, ready, sizeof *ready, MSG_NOSIGNAL) >= 0 && ready->failed == 0;
}

}  // namespace causeway::host
