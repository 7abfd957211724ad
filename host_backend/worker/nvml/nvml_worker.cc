// SPDX-License-Identifier: Apache-2.0
// A worker whose session is one of management: it opens NVML instead of the driver and makes no context.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "host_backend/common/result.h"
#include "host_backend/worker/nvml/nvml.h"
#include "host_backend/worker/process/call_counter.h"
#include "host_backend/worker/start/confinement.h"
#include "host_backend/worker/start/guest_link.h"
#include "host_backend/worker/start/worker_assignment.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::host {
namespace {

using Clock = std::chrono::steady_clock;

// The control socket: its end ends the worker, and the daemon answers on it who else belongs to the tenant.
class ControlLink {
 public:
  ControlLink(int control, GuestLink& guest) : control_(control), guest_(guest) {}

  // Until either side is gone; ends the process then. A thread of its own.
  void Watch() {
    constexpr int kReportMs = 500, kForEver = -1;
    for (bool silent = false;;) {
      pollfd watched[3] = {{control_, POLLIN, 0}, guest_.Watched(), {calls.alarm(), POLLIN, 0}};
      poll(watched, 3, silent ? kForEver : kReportMs);  // descriptors below 0 are passed over
      if (watched[0].revents != 0 && !ReadControl()) {
        guest_.SayGoodbye();
        _exit(0);
      }
      if (!guest_.StillThere(watched[1])) _exit(0);
      silent = false;
      if ((watched[2].revents & POLLIN) != 0) {
        calls.Quiet();
      } else {
        silent = !SendUsage() && calls.Arm(last_usage_.calls);
      }
    }
  }

  // An answer may be as old as kFresh: a guest that asks without end costs the daemon little.
  std::vector<WorkerPeer> Peers() {
    constexpr std::chrono::milliseconds kFresh{2}, kPatience{2'000};
    std::unique_lock lock(mutex_);
    if (Clock::now() - answered_at_ < kFresh) return peers_;
    const uint64_t before = answers_;
    const WorkerQuery query{WorkerQuery::kPeers};
    if (send(control_, &query, sizeof query, MSG_NOSIGNAL) != sizeof query) return {};
    if (!answered_.wait_for(lock, kPatience, [&] { return answers_ != before; })) return {};
    return peers_;
  }

  // False: nothing has changed.
  bool SendUsage() {
    const WorkerUsage usage{calls.total(), violations.load()};
    if (std::memcmp(&usage, &last_usage_, sizeof usage) == 0) return false;
    send(control_, &usage, sizeof usage, MSG_DONTWAIT | MSG_NOSIGNAL);
    last_usage_ = usage;
    return true;
  }

  CallCounter calls;
  std::atomic<uint64_t> violations{0};

 private:
  bool ReadControl() {
    WorkerPeers answer{};
    int descriptor = -1;
    const ssize_t bytes =
        ReceivePacket(control_, &answer, sizeof answer, std::span(&descriptor, 1), MSG_DONTWAIT);
    UniqueFd received(descriptor);
    if (bytes < 0) return errno == EAGAIN || errno == EINTR;
    if (WorkerResume resume; bytes == static_cast<ssize_t>(sizeof resume)) {
      std::memcpy(&resume, &answer, sizeof resume);
      guest_.Resume(resume, std::move(received));
      return true;
    }
    if (bytes < static_cast<ssize_t>(offsetof(WorkerPeers, peer)) || answer.count > kMaxPeers) return false;
    const std::lock_guard lock(mutex_);
    peers_.assign(answer.peer, answer.peer + answer.count);
    answered_at_ = Clock::now();
    ++answers_;
    answered_.notify_all();
    return true;
  }

  const int control_;
  GuestLink& guest_;
  WorkerUsage last_usage_{};  // of the watching thread
  std::mutex mutex_;
  std::condition_variable answered_;
  std::vector<WorkerPeer> peers_;
  Clock::time_point answered_at_{};
  uint64_t answers_ = 0;
};

// Channel 0 until the guest ends or breaks the format; the reason, or "".
std::string ServeRequests(ServerTransport& transport, NvmlHost& host, ControlLink& daemon) {
  constexpr uint32_t kChannel = 0;
  std::vector<std::byte> body(kMaxChannelRecordBytes - sizeof(RecordHeader));
  for (;;) {
    std::span<const std::byte> record;
    const ReceiveStatus status = transport.ReceiveRequest(kChannel, &record);
    if (status == ReceiveStatus::kCorrupt) {
      daemon.violations.fetch_add(1);
      return std::string("the guest broke the protocol: ") + transport.CorruptReason();
    }
    if (status != ReceiveStatus::kRecord) return {};
    const auto header = ReadHeader<RecordHeader>(record);
    Reader in(record.subspan(sizeof header));
    Writer out(body);
    bool known = false;
    RecordHeader reply{};
    reply.op = header.op;
    reply.result = static_cast<uint32_t>(host.Serve(header.op, in, out, &known));
    daemon.calls.Note();
    if (!known) {
      daemon.violations.fetch_add(1);
      return "the guest broke the protocol: a message has no meaning: opcode " + std::to_string(header.op);
    }
    const size_t bytes = out.ok() ? out.size() : 0;
    std::byte* space = transport.ReserveReply(kChannel, sizeof reply + bytes);
    if (space == nullptr) return {};
    PutHeader(space, reply);
    std::memcpy(space + sizeof reply, body.data(), bytes);
    transport.DoneRequest(kChannel);
    transport.PublishReply(kChannel, sizeof reply + bytes);
  }
}

}  // namespace

int RunManagementWorker(int control, const std::string& path, bool all_devices,
                        const ConfinementOptions& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_IGN);
  Confinement confinement(options);
  confinement.BeforeDriver(path);
  static NvmlLibrary library;
  std::unique_ptr<ControlLink> daemon;  // made with the session; the host asks it then
  NvmlHost host(library, [&daemon] { return daemon->Peers(); });
  std::string error = library.Open(path);
  // The daemon's own variable, which limits its CUDA workers too.
  const char* visible = all_devices ? nullptr : getenv("CUDA_VISIBLE_DEVICES");
  if (error.empty()) error = host.FindDevices(visible);
  WorkerReady ready{};
  if (error.empty())
    error =
        confinement.AfterDriver(reinterpret_cast<void*>(library.init), sandbox::Kind::kManagement, &ready);
  int version = 0;
  if (error.empty() && library.cuda_version != nullptr) library.cuda_version(&version);
  ready.driver_version = static_cast<uint32_t>(version);
  ready.device_count = static_cast<uint32_t>(host.device_count());
  if (!SendReady(control, error, path, &ready)) return 1;

  ReceivedAssignment received;
  const auto belong = [&](const WorkerScope& scope) { confinement.Belong(scope); };
  if (!ReceiveAssignment(control, belong, &received)) return 0;
  AccountPage* page = nullptr;
  FlightImage* flight = nullptr;
  RegionView view;
  if (MapSession(&received, &view, &page, &flight, &error))
    error = confinement.Enter(control, received.assignment);
  host.SetAccount(page);
  if (error.empty()) {
    const auto no_bulk = [](uint64_t, uint64_t) -> std::byte* { return nullptr; };
    TcpServer* stream = nullptr;
    const std::unique_ptr<ServerTransport> transport =
        OpenTransport(received, control, view, flight, no_bulk, &stream);
    SayServing(view);
    // Its thread may be in it to the end of the process.
    static auto& guest = *new GuestLink(received, stream);
    daemon = std::make_unique<ControlLink>(control, guest);
    host.SetLocal(received.assignment.has_client_socket != 0);
    try {
      std::thread([&daemon] { daemon->Watch(); }).detach();
    } catch (const std::system_error& failure) {
      error = NoThreadText(failure);
    }
    if (error.empty()) error = ServeRequests(*transport, host, *daemon);
  }
  if (!error.empty()) dprintf(STDERR_FILENO, "causeway-worker[%d]: %s\n", getpid(), error.c_str());
  _exit(error.empty() ? 0 : 3);  // no clean-up that could hang in the library
}

}  // namespace causeway::host
