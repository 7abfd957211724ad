// SPDX-License-Identifier: Apache-2.0
// Stands in for causeway-worker in the daemon's tests: no driver, and a behaviour chosen by the --driver
// argument.
//   ok, stubborn (ignores the end), fail (no driver), crash (before ready), silent (never ready), violation,
//   fill, slow (ready after two seconds), foreign (of other rows than asked for), later (of a later control protocol),
//   whole (names two GPUs, and looks for a module image that it then gives), waits (for a guest that has lost its connection)
// As .../HASH/causeway-worker it is one of those rows.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "host_backend/common/named_devices.h"
#include "host_backend/common/remote/tls_hand_over.h"
#include "host_backend/common/shares/account_page.h"
#include "host_backend/common/worker_control.h"
#include "ivshmem_ring/messages/image_hash.h"
#include "ivshmem_ring/messages/resume_messages.h"
#include "ivshmem_ring/release/build_stamp.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/packet.h"

namespace {

using namespace causeway;

struct Received {
  WorkerAssignment assignment{};
  bool waits = false;  // for its guest
  bool compresses = false;
  int descriptors[kMaxPacketDescriptors] = {-1, -1, -1,
                                            -1, -1, -1};  // two of the account page, the session's
  int session(int index) const { return descriptors[2 + index]; }
};

// What a kept spare is told of its scope before comes first.
bool Receive(int control, Received& received) {
  ssize_t bytes = 0;
  WorkerLongAssignment said{};
  do {
    bytes = ReceivePacket(control, &said, sizeof(said), received.descriptors);
  } while (bytes == ssize_t(sizeof(WorkerScope)));
  received.assignment = said.assignment;
  const bool is_long = bytes == ssize_t(sizeof(said));
  received.waits = is_long && said.grace_s != 0;
  received.compresses = is_long && said.compresses != 0;
  return is_long || bytes == ssize_t(sizeof(said.assignment));
}

// Of the rows that its folder names, or of this build's.
uint64_t HashOf(const std::string& program) {
  const size_t name = program.rfind('/'), folder = program.rfind('/', name - 1);
  const std::string text = program.substr(folder + 1, name - folder - 1);
  char* end = nullptr;
  const uint64_t hash = std::strtoull(text.c_str(), &end, 16);
  return *end == '\0' && hash != 0 ? hash : kBuildStamp.api_hash;
}

void SendReady(int control, const std::string& mode, const std::string& program) {
  if (mode == "slow") sleep(2);
  WorkerReady ready{};
  ready.failed = mode == "fail" ? 1 : 0;
  ready.driver_version = 13000;
  ready.device_count = 1;
  ready.loads_lazily = mode == "lazy" ? 1 : 0;
  ready.api_hash = HashOf(program) ^ (mode == "foreign" ? 1 : 0);
  if (mode == "waits") ready.features = kWaitsForGuests;
  if (mode == "compresses") ready.features = kCompresses;
  ready.control_version = mode == "later" ? 99 : kWorkerControl;
  std::memcpy(ready.release, kBuildStamp.release, sizeof ready.release);
  std::snprintf(
      ready.text, sizeof(ready.text), "%s",
      mode == "fail" ? "The driver library /missing/libcuda.so.1 cannot be opened." : "/fake/libcuda.so.1");
  if (mode == "whole") NameDevices(std::vector<NamedDevice>{{0xfa, 0xce, 1}, {0xfa, 0xce, 2}}, &ready);
  send(control, &ready, sizeof(ready), MSG_NOSIGNAL);
}

// What the tests look at: the environment and personality that the daemon gave, and bytes on the account
// page.
void SendUsage(int control, const Received& received, const std::string& mode) {
  std::string error;
  const uint32_t cell = received.assignment.account_cell;
  AccountPage* page = MapAccountPage(received.descriptors[0], received.descriptors[1], cell, &error);
  if (page == nullptr) std::exit(2);
  const bool compatible = (personality(0xffffffff) & ADDR_COMPAT_LAYOUT) != 0;
  // Another folder than the daemon's own choice would be the guest's.
  const char* cache = std::getenv("CUDA_CACHE_PATH");
  const bool told =
      (cache != nullptr && std::strcmp(cache, "/etc") == 0) || std::getenv("CUDA_MODULE_LOADING") != nullptr;
  page->Add(cell, MemoryKind::kDevice, page->PlaceOf(cell, "0123456789abcde"), compatible ? 1 : 0);
  page->Add(cell, MemoryKind::kPinned, kNoDevice, told ? 1 : 0);
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  WorkerUsage usage{};
  usage.calls = connections != nullptr ? std::strtoull(connections, nullptr, 10) : 0;
  usage.violations = mode == "violation" ? 1 : 0;
  send(control, &usage, sizeof(usage), MSG_NOSIGNAL);
}

// How many sessions of its tenant the daemon knows, as the number of calls.
void ReportPeers(int control) {
  const WorkerQuery query{WorkerQuery::kPeers};
  WorkerPeers peers{};
  send(control, &query, sizeof(query), MSG_NOSIGNAL);
  if (recv(control, &peers, sizeof(peers), 0) <= 0) return;
  WorkerUsage usage{};
  usage.calls = peers.count;
  send(control, &usage, sizeof(usage), MSG_NOSIGNAL);
}

// The same image each time, which the daemon is to have from the second time on.
void ShareImage(int control) {
  constexpr uint64_t kBytes = 4096;
  const std::string bytes(kBytes, 'i');
  ImageHasher hasher;
  hasher.Add(bytes.data(), bytes.size());
  const ImageHash hash = hasher.Finish();
  ImageRequest image{};
  std::memcpy(image.hash, hash.data(), sizeof image.hash);
  image.bytes = kBytes;
  SharingRequest request{};
  std::memcpy(request.bytes, &image, sizeof image);
  SharingReply reply{};
  int found = -1;
  request.action = SharingAction::kGetImage;
  request.number = 0x12345678;
  send(control, &request, sizeof request, MSG_NOSIGNAL);
  ReceivePacket(control, &reply, sizeof reply, std::span(&found, 1));
  if (reply.number != request.number) std::exit(2);
  if (reply.result == SharingResult::kOk) return;
  const int file = memfd_create("image", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const bool made = pwrite(file, bytes.data(), kBytes, 0) == ssize_t(kBytes) &&
                    ftruncate(file, kBytes + kImagePadding) == 0 &&
                    fcntl(file, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0;
  if (!made) std::exit(2);
  request.action = SharingAction::kPutImage;
  request.has_descriptor = 1;
  SendPacket(control, &request, sizeof request, std::span(&file, 1));
  recv(control, &reply, sizeof reply, 0);
}

void ServeRegion(int control, const Received& received, const std::string& mode) {
  const WorkerAssignment& assignment = received.assignment;
  auto* base = static_cast<char*>(
      mmap(nullptr, assignment.region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, received.session(0), 0));
  if (base == MAP_FAILED) std::exit(2);
  auto* host = reinterpret_cast<HostControl*>(base + SlotOffset(assignment.slot) + kHostControlOffset);
  // Window and session as assigned, where a test can read them.
  host->main_head.value = assignment.window_address;
  host->async_error.value = assignment.session;
  if (mode == "violation") {
    std::strcpy(host->refusal, "The fake worker saw a malformed record.");
    std::exit(1);
  }
  // Pages that must be given back when the session ends.
  if (mode == "fill") std::memset(base + FirstSliceOffset(SlotCount(assignment.region_bytes)), 0x5a, 8 << 20);
  std::atomic_ref<uint64_t>(host->ready.value).store(1, std::memory_order_release);
  pollfd ends[2] = {{control, POLLIN, 0}, {received.session(2), POLLIN | POLLRDHUP, 0}};
  // What a daemon that takes it over says to it ends nothing.
  char said[64];
  for (;;) {
    if (poll(ends, assignment.has_client_socket != 0 ? 2 : 1, -1) <= 0) continue;
    if (ends[1].revents != 0 || recv(control, said, sizeof said, 0) <= 0) return;
  }
}

void ServeTcp(const Received& received) {
  char buffer[4096];
  ssize_t bytes = 0;
  while ((bytes = recv(received.session(0), buffer, sizeof(buffer), 0)) > 0) {
    send(received.session(0), buffer, size_t(bytes), MSG_NOSIGNAL);
  }
}

// As ServeTcp, on the guest's own socket, until the connection's process ends. Or, where it waits for its guest, until something comes on
// `control`. `greeting` is sent first.
void ServeTls(int connection, int control, std::span<const std::byte> greeting) {
  auto stream = ReceiveTlsStream(connection);
  if (!stream.ok()) return;
  TlsRecords& records = *stream.value().records;
  const int guest = stream.value().socket.get();
  std::vector<std::byte> wire(4096), plain(4096);
  if (!greeting.empty()) {
    std::vector<std::byte> sealed;
    records.Seal(greeting);
    records.TakeOutput(sealed);
    send(guest, sealed.data(), sealed.size(), MSG_NOSIGNAL);
  }
  pollfd ends[3] = {{guest, POLLIN, 0}, {connection, POLLIN, 0}, {control, POLLIN, 0}};
  while (poll(ends, 3, -1) > 0 && ends[1].revents == 0 && ends[2].revents == 0) {
    const ssize_t got = recv(guest, wire.data(), 4096, 0);
    if (got <= 0) return;
    records.Received(std::span(wire).first(size_t(got)));
    for (ptrdiff_t opened; (opened = records.Open(plain)) != 0;) {
      if (opened < 0) return;
      records.Seal(std::span(plain).first(size_t(opened)));
    }
    std::vector<std::byte> answer;
    records.TakeOutput(answer);
    send(guest, answer.data(), answer.size(), MSG_NOSIGNAL);
  }
}

// Says when it waits, and goes on with each connection that comes; it says of itself that it has received what the guest says that it has.
void ServeTlsAgain(int connection, int control) {
  std::vector<std::byte> greeting;
  for (;;) {
    ServeTls(connection, control, greeting);
    close(connection);
    const WorkerLink lost{1, {}}, back{0, {}};
    send(control, &lost, sizeof lost, MSG_NOSIGNAL);
    WorkerResume resume{};
    ssize_t bytes;
    while ((bytes = ReceivePacket(control, &resume, sizeof resume, std::span(&connection, 1))) !=
           ssize_t(sizeof resume))
      if (bytes <= 0) return;
    const ResumeGreeting said{kResumeMagic, resume.received[0] | uint64_t{resume.received[1]} << 32};
    const auto parts = std::as_bytes(std::span(&said, 1));
    greeting.assign(parts.begin(), parts.end());
    send(control, &back, sizeof back, MSG_NOSIGNAL);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> options;  // each has a value
  for (int i = 1; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  const bool management = options.contains("--management");
  if (!options.contains("--control-fd") || management == options.contains("--driver")) return 4;
  const int control = std::atoi(options["--control-fd"].c_str());
  const std::string mode = options[management ? "--management" : "--driver"];
  if (mode == "crash") {
    std::fprintf(stderr, "the fake worker crashes on purpose\n");
    return 3;
  }
  if (mode != "silent") SendReady(control, mode, argv[0]);
  if (mode == "fail") return 0;
  Received received;
  if (!Receive(control, received)) return 0;
  WorkerConfined confined{};
  confined.filter_instructions = 1;
  send(control, &confined, sizeof(confined), MSG_NOSIGNAL);
  if (management) {
    ReportPeers(control);
  } else {
    SendUsage(control, received, mode);
    if (mode == "whole") ShareImage(control);
  }
  if (received.assignment.kind == AssignmentKind::kTcp) {
    ServeTcp(received);
  } else if (received.assignment.kind == AssignmentKind::kTls) {
    // Of one that can compress the first byte says whether it was told to.
    const std::byte told{received.compresses ? uint8_t{'1'} : uint8_t{'0'}};
    if (received.waits)
      ServeTlsAgain(received.session(0), control);
    else
      ServeTls(received.session(0), -1, {&told, mode == "compresses" ? 1u : 0u});
  } else {
    ServeRegion(control, received, mode);
  }
  while (mode == "stubborn") pause();
  return 0;
}
