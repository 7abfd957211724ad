// SPDX-License-Identifier: Apache-2.0
// Stands in for causeway-worker and speaks to the daemon as a taken one may (worker_words.h). It is not
// confined: what it sends is what counts here. hostile_sandbox_test has what a confined one can do.
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "host_backend/common/worker_control.h"
#include "ivshmem_ring/messages/image_hash.h"
#include "ivshmem_ring/release/build_stamp.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/packet.h"
#include "tests/hostile/worker_words.h"

namespace causeway::test {
namespace {

using Bytes = std::vector<char>;

template <class Message>
Bytes Packet(const Message& message) {
  const char* begin = reinterpret_cast<const char*>(&message);
  return Bytes(begin, begin + sizeof message);
}

SharingRequest Request(SharingAction action, SharedKind kind = SharedKind::kIpcEvent) {
  SharingRequest request{};
  request.action = action;
  request.kind = kind;
  return request;
}

CheckpointOrder Order(CheckpointAction action, uint32_t process = 0x3fffffff) {
  CheckpointOrder order{};
  order.action = action;
  order.guest_pid = process;
  return order;
}

// One of each, as good as it can be.
std::vector<Bytes> GoodMessages() {
  WorkerReady ready{};
  ready.device_count = 1;
  return {Packet(ready),
          Packet(WorkerConfined{100, 0, {}}),
          Packet(WorkerUsage{1, 0}),
          Packet(Request(SharingAction::kPut)),
          Packet(Request(SharingAction::kGet)),
          Packet(Request(SharingAction::kDrop)),
          Packet(Request(SharingAction::kGetImage)),
          Packet(Order(CheckpointAction::kGetState)),
          Packet(WorkerReachable{1, {}}),
          Packet(WorkerMemoryUse{1, 0, 1, {}}),
          Packet(WorkerDeviceUse{{}, {}, 0, 0, 1, 2}),
          Packet(WorkerQuery{WorkerQuery::kPeers})};
}

class HostileWorker {
 public:
  HostileWorker(int control, int client, WordsPage* page) : control_(control), client_(client), page_(page) {}

  void Say() {
    switch (page_->words) {
      case Words::kFields:
        return Fields();
      case Words::kSizes:
        return Sizes();
      case Words::kDescriptors:
        return Descriptors(GoodMessages());
      case Words::kListener:
        return Descriptors({Packet(WorkerConfined{100, 1, {}})});
      case Words::kFlood:
        return Flood(page_->step, true);
      case Words::kDeafFlood:
        return Flood(1, false);
      case Words::kPrinting:
        return Print();
      case Words::kSilence:
        Send(Bytes(sizeof(WorkerReady) / 2));
        return;
      case Words::kHalfClosed:
        shutdown(control_, SHUT_WR);
        for (const Bytes& message : GoodMessages()) Send(message);
        return;
      case Words::kClosed:
        close(control_);
        return;
      case Words::kUnread:
        return Leave();
      case Words::kFalseImage:
        return Image(1, true);
      case Words::kImages:
        for (uint32_t i = 0; i < 400; ++i) Image(i, false);
        return;
      case Words::kCheckpoints:
        return Checkpoints();
      case Words::kBlockingClient:
        return Steal();
      case Words::kNone:
        return;
    }
  }

 private:
  bool Send(const Bytes& packet, const std::vector<int>& descriptors = {}) {
    return SendPacket(control_, packet.data(), packet.size(), descriptors);
  }

  // The kernel refuses more descriptors on their way than a user may have open, whichever of its processes sends them, those of tests
  // beside this one among them.
  bool SendPatiently(const Bytes& packet, const std::vector<int>& descriptors) {
    while (!Send(packet, descriptors)) {
      if (errno != ETOOMANYREFS) return false;
      ++page_->refused;
      usleep(1000);
    }
    return true;
  }

  // Returns once the daemon has read all that was sent, if it lets this process live.
  void WaitUntilRead() {
    SharingRequest probe = Request(SharingAction::kGet);
    ++probes_;
    std::memcpy(probe.bytes, &probes_, sizeof probes_);
    if (!Send(Packet(probe))) pause();
    for (;;) {
      WorkerPeers answer;  // the longest
      const ssize_t bytes = recv(control_, &answer, sizeof answer, 0);
      if (bytes <= 0) pause();
      SharingReply reply;
      std::memcpy(&reply, &answer, sizeof reply);
      uint64_t number = 0;
      std::memcpy(&number, reply.bytes, sizeof number);
      if (bytes == ssize_t(sizeof reply) && number == probes_) return;
    }
  }

  // Whether this step is to be sent; says where it is.
  bool Turn() {
    const uint32_t step = next_++;
    if (step < page_->step) return false;
    page_->reached = step;
    return true;
  }

  void Fields() {
    constexpr uint32_t kValues[] = {0, 1, 2, 7, 0x7fffffff, 0x80000000, 0xffffffff};
    for (Bytes message : GoodMessages()) {
      const size_t words = message.size() / 4;
      for (size_t word = 0; word < words; ++word) {
        // Of texts, the ends.
        if (word >= 6 && word + 2 < words && words > 100 && word != 127) continue;
        for (const uint32_t value : kValues) {
          if (!Turn()) continue;
          Bytes changed = message;
          std::memcpy(changed.data() + word * 4, &value, 4);
          if (words > 100 && value == 0xffffffff) std::memset(changed.data() + 16, 'x', changed.size() - 16);
          Send(changed);
          WaitUntilRead();
        }
      }
    }
  }

  // All small ones, those around each message's own, some in between, and long ones.
  void Sizes() {
    std::set<size_t> sizes = {4096, 65536, 150000};
    for (size_t size = 0; size < sizeof(CheckpointOrder) + 40; size += size < 128 ? 1 : 61)
      sizes.insert(size);
    for (const Bytes& message : GoodMessages()) {
      for (const size_t size : {message.size() - 1, message.size(), message.size() + 1}) sizes.insert(size);
    }
    for (const size_t size : sizes) {
      if (!Turn()) continue;
      Send(Bytes(size, '\1'));
      WaitUntilRead();
    }
  }

  int SomeDescriptor(int kind) {
    int pair[2] = {-1, -1};
    switch (kind) {
      case 0:
        return pipe(pair) == 0 ? pair[0] : -1;
      case 1:
        return eventfd(1, 0);  // always readable
      case 2:
        return memfd_create("hostile", MFD_ALLOW_SEALING);
      case 3:
        return open("/dev/zero", O_RDWR);
      case 4: {
        socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair);
        const int parcel = eventfd(1, 0);
        SendPacket(pair[1], "x", 1, std::span(&parcel, 1));  // a descriptor in a descriptor
        return pair[0];
      }
      case 5:
        return epoll_create1(0);
      default:
        return control_;
    }
  }

  void Descriptors(const std::vector<Bytes>& messages) {
    for (const Bytes& message : messages) {
      for (int kind = 0; kind < 7; ++kind) {
        for (const size_t count : {1u, 2u, 253u}) {
          if (!Turn()) continue;
          Bytes says = message;
          const uint32_t one = 1;  // has_descriptor and its like
          if (says.size() == sizeof(SharingRequest)) {
            SharingRequest request;
            std::memcpy(&request, says.data(), sizeof request);
            request.has_descriptor = one;
            request.kind = SharedKind::kMemory;
            says = Packet(request);
          }
          const int descriptor = SomeDescriptor(kind);
          Send(says, std::vector<int>(count, descriptor));
          WaitUntilRead();
        }
      }
    }
  }

  void Flood(uint32_t kind, bool reads) {
    const int memory = memfd_create("hostile", 0);
    SharingRequest put = Request(SharingAction::kPut, SharedKind::kMemory);
    put.has_descriptor = 1;
    SharingRequest get = Request(SharingAction::kGet, SharedKind::kMemory);
    SendPatiently(Packet(put), {memory});
    SharingReply reply{};
    if (recv(control_, &reply, sizeof reply, 0) == sizeof reply)
      std::memcpy(get.token, reply.token, sizeof get.token);
    SharingRequest bytes = Request(SharingAction::kPut, SharedKind::kIpcMemory);
    for (uint64_t number = 0;; ++number) {
      std::memcpy(bytes.bytes, &number, sizeof number);
      const bool sent = kind == 0   ? Send(Packet(WorkerUsage{number, number}))
                        : kind == 1 ? Send(Packet(get))
                        : kind == 2 ? SendPatiently(Packet(put), {memory})
                        : kind == 4 ? Send(Packet(Order(CheckpointAction::kLock)))
                                    : Send(Packet(bytes));
      if (!sent) pause();
      ++page_->sent;
      while (reads) {
        int received = -1;
        if (ReceivePacket(control_, &reply, sizeof reply, std::span(&received, 1), MSG_DONTWAIT) < 0) break;
        close(received);
      }
    }
  }

  void Print() {
    const Bytes lines(4096, '\n');
    while (write(STDERR_FILENO, lines.data(), lines.size()) > 0) page_->sent += lines.size();
  }

  void Leave() {
    for (int i = 0; i < 32; ++i) {
      Send(Bytes(100), std::vector<int>(kMostDescriptors, SomeDescriptor(2)));
      page_->reached = 1;
    }
    _exit(0);
  }

  void Image(uint32_t number, bool lies) {
    Bytes bytes(1 << 20, 'i');
    std::memcpy(bytes.data(), &number, sizeof number);
    ImageHasher hasher;
    hasher.Add(bytes.data(), bytes.size());
    ImageRequest image{};
    const ImageHash hash = hasher.Finish();
    std::memcpy(image.hash, hash.data(), sizeof image.hash);
    image.hash[0] ^= lies ? 1 : 0;
    image.bytes = bytes.size();
    bytes.resize(bytes.size() + kImagePadding);
    const int file = memfd_create("hostile", MFD_ALLOW_SEALING);
    if (write(file, bytes.data(), bytes.size()) != ssize_t(bytes.size())) _exit(2);
    fcntl(file, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    SharingRequest request = Request(SharingAction::kPutImage);
    request.has_descriptor = 1;
    std::memcpy(request.bytes, &image, sizeof image);
    SendPatiently(Packet(request), {file});
    close(file);
    WaitUntilRead();
    ++page_->sent;
  }

  // Of a session that serves, by checkpointers that lie (Lie below). Each is answered once.
  void Checkpoints() {
    for (uint32_t lie = 0; lie <= kLastLie; ++lie) {
      CheckpointOrder order = Order(CheckpointAction::kLock, page_->step);
      order.timeout_ms = lie + 1;
      Send(Packet(order));
      CheckpointAnswer answer{};
      if (recv(control_, &answer, sizeof answer, 0) != ssize_t(sizeof answer)) pause();
      if (answer.result == 0) _exit(3);
      ++page_->sent;
    }
  }

  void Steal() {
    for (;;) {
      fcntl(client_, F_SETFL, 0);
      char byte;
      if (recv(client_, &byte, 1, MSG_DONTWAIT) == 1) ++page_->sent;
    }
  }

  const int control_;
  const int client_;
  WordsPage* const page_;
  uint32_t next_ = 0;
  uint64_t probes_ = uint64_t{1} << 63;
};

// A worker has no capabilities and 4096 descriptors (host_backend/worker/start/confinement.cc): with more it could
// have so many on their way that the kernel lets nobody else of its user send any.
void LoseWhatAWorkerHasNot() {
  const rlimit descriptors{4096, 4096};
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[2]{};
  if (setrlimit(RLIMIT_NOFILE, &descriptors) != 0 || syscall(SYS_capset, &header, none) != 0) _exit(5);
}

// As checkpointer: the answer of the lie that the order's time limit names.
int Lie(int control) {
  CheckpointOrder order{};
  if (recv(control, &order, sizeof order, 0) != ssize_t(sizeof order)) return 1;
  const std::vector<char> bytes(1 << 16, '\x7f');
  switch (order.timeout_ms) {
    case 1:
      return 0;  // none
    case 2:
      send(control, bytes.data(), 0, 0);
      break;
    case 3:
      send(control, bytes.data(), sizeof(CheckpointAnswer) - 1, 0);
      break;
    case 4:
      send(control, bytes.data(), bytes.size(), 0);
      break;
    case 5:
      for (int i = 0; i < 100; ++i) send(control, bytes.data(), sizeof(CheckpointAnswer), MSG_DONTWAIT);
      break;
    case 6:
      shutdown(control, SHUT_WR);
      break;
    default: {
      const int parcel = eventfd(1, 0);
      // Where the kernel refuses it for the daemon (Linux 6.16), the packet comes alone.
      if (!SendPacket(control, bytes.data(), sizeof(CheckpointAnswer), std::span(&parcel, 1)))
        send(control, bytes.data(), sizeof(CheckpointAnswer), 0);
    }
  }
  for (;;) pause();
}

int Serve(int control) {
  WorkerReady ready{};
  ready.driver_version = 13000;
  ready.device_count = 1;
  ready.api_hash = kBuildStamp.api_hash;
  ready.control_version = kWorkerControl;
  std::strcpy(ready.text, "/hostile/libcuda.so.1");
  send(control, &ready, sizeof ready, MSG_NOSIGNAL);
  WorkerAssignment assignment;
  int descriptors[kMaxPacketDescriptors];
  if (ReceivePacket(control, &assignment, sizeof assignment, descriptors) != ssize_t(sizeof assignment))
    return 0;
  auto* base = static_cast<char*>(
      mmap(nullptr, assignment.region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptors[2], 0));
  if (base == MAP_FAILED) return 2;
  auto* host = reinterpret_cast<HostControl*>(base + SlotOffset(assignment.slot) + kHostControlOffset);
  std::atomic_ref<uint64_t>(host->ready.value).store(1, std::memory_order_release);
  auto* page = reinterpret_cast<WordsPage*>(base + FirstSliceOffset(SlotCount(assignment.region_bytes)));
  const bool hostile = page->words != Words::kNone;
  HostileWorker(control, descriptors[4], page).Say();
  std::atomic_ref<uint32_t>(page->ended).store(1, std::memory_order_release);
  while (hostile) pause();
  pollfd ends[2] = {{control, POLLIN, 0}, {descriptors[4], POLLIN | POLLRDHUP, 0}};
  for (;;) {
    poll(ends, 2, -1);
    WorkerReach reach{};
    const ssize_t bytes = recv(control, &reach, sizeof reach, MSG_DONTWAIT);
    if (ends[1].revents != 0 || bytes == 0) return 0;
    const WorkerReachable reachable{reach.number, {}};
    if (bytes == ssize_t(sizeof reach) && reach.number != 0)
      send(control, &reachable, sizeof reachable, MSG_NOSIGNAL);
  }
}

}  // namespace
}  // namespace causeway::test

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  causeway::test::LoseWhatAWorkerHasNot();
  bool lies = false;
  for (int i = 1; i < argc; ++i) lies = lies || std::strcmp(argv[i], "--checkpoint") == 0;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--control-fd") == 0) {
      const int control = std::atoi(argv[i + 1]);
      return lies ? causeway::test::Lie(control) : causeway::test::Serve(control);
    }
  }
  return 4;
}
