// SPDX-License-Identifier: Apache-2.0
// The worker: executes one guest process's calls with the driver library.
//
//   start driver (cuInit, primary context of device 0) -> tell the daemon -> wait for a session -> serve it
//   -> end
//
// It ends with its session; the driver then frees whatever the guest process had on the GPU.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "ivshmem_ring/protocol/driver_api.h"

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "host_backend/common/named_devices.h"
#include "host_backend/common/result.h"
#include "host_backend/common/worker_control.h"
#include "host_backend/worker/accounting/accounting.h"
#include "host_backend/worker/addresses/arenas.h"
#include "host_backend/worker/api/dispatch.h"
#include "host_backend/worker/api/guarded_driver.h"
#include "host_backend/worker/device/device.h"
#include "host_backend/worker/nvml/nvml.h"
#include "host_backend/worker/process/crash_note.h"
#include "host_backend/worker/process/daemon_link.h"
#include "host_backend/worker/process/populate.h"
#include "host_backend/worker/session/channels.h"
#include "host_backend/worker/session/dispatcher.h"
#include "host_backend/worker/slices/channel_groups.h"
#include "host_backend/worker/start/checkpointer.h"
#include "host_backend/worker/start/confinement.h"
#include "host_backend/worker/start/guest_link.h"
#include "host_backend/worker/start/pageable_access.h"
#include "host_backend/worker/start/worker_assignment.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::host {
namespace {

void Log(const std::string& sentence) {
  dprintf(Output::LogFd(), "causeway-worker[%d]: %s\n", getpid(), sentence.c_str());
}

// Everything a session would otherwise wait for at its first call.
std::string StartDriver(const std::string& path, bool allow_pageable_access, WorkerReady* ready) {
  const Driver& driver = TheDriver();
  std::string error;
  if (!OpenDriver(path, &error)) return error;
  int count = 0, version = 0;
  CUresult result = driver.cuInit(0);
  if (result == CUDA_SUCCESS) result = driver.cuDeviceGetCount(&count);
  if (result != CUDA_SUCCESS || count == 0) {
    const char* name = "no device";
    if (result != CUDA_SUCCESS) driver.cuGetErrorName(result, &name);
    return "the driver library '" + path + "' finds no GPU (" + name + "): check nvidia-smi on this host";
  }
  if (const std::string refusal = PageableAccessRefusal(count); !refusal.empty() && !allow_pageable_access)
    return refusal;
  driver.cuDriverGetVersion(&version);
  Descriptions();  // asked now, so that no session waits for the driver's answers
  CUcontext context = nullptr;
  result = driver.cuDevicePrimaryCtxRetain(&context, 0);
  if (result != CUDA_SUCCESS) {
    return "cannot make a context on GPU 0 (error " + std::to_string(result) +
           "): is its memory exhausted or its mode exclusive?";
  }
  warm_context.store(context);
  size_t free_bytes = 0, all_bytes = 0;
  if (driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
    if (driver.cuMemGetInfo_v2(&free_bytes, &all_bytes) == CUDA_SUCCESS)
      ready->device_free_bytes = free_bytes;
    driver.cuCtxPopCurrent_v2(&context);
  }
  ready->driver_version = static_cast<uint32_t>(version);
  ready->device_count = static_cast<uint32_t>(count);
  CUmoduleLoadingMode mode{};
  ready->loads_lazily =
      driver.cuModuleGetLoadingMode(&mode) == CUDA_SUCCESS && mode == CU_MODULE_LAZY_LOADING;
  return {};
}

// None where a device is a part of a GPU (MIG): the driver then shows one part, and the other GPUs are hidden.
std::vector<NamedDevice> ShownDevices() {
  std::vector<NamedDevice> devices;
  for (const DeviceDescription& each : Descriptions()) {
    if (std::memcmp(&each.uuid, &each.uuid_v2, sizeof each.uuid) != 0) return {};
    std::memcpy(devices.emplace_back().data(), &each.uuid, sizeof(NamedDevice));
  }
  return devices;
}

// Timers of the threads that the driver starts meanwhile may be late by so much, so that the kernel lets
// those of all workers expire together: one such thread (NVIDIA's cuda-EvtHandlr) wakes ten times a second
// for nothing, which was nearly all that idle sessions cost. What its descriptors tell it comes as ever.
// Threads inherit the slack of who starts them; ours come later, with bounded sleeps of 20 us that should not
// become 70.
std::string StartDriverWithLateTimers(const std::string& path, bool allow_pageable_access,
                                      WorkerReady* ready) {
  constexpr unsigned long kDriversSlackNs = 700'000'000, kOurSlackNs = 1000;
  prctl(PR_SET_TIMERSLACK, kDriversSlackNs);
  std::string error = StartDriver(path, allow_pageable_access, ready);
  prctl(PR_SET_TIMERSLACK, kOurSlackNs);
  return error;
}

std::unique_ptr<Session> OpenSession(const ReceivedAssignment& received, int control, const RegionView& view,
                                     FlightImage* flight, TcpServer** stream) {
  // The session is made after the transport that asks it, hence the holder.
  auto holder = std::make_shared<Session*>(nullptr);
  const auto resolve = [holder](uint64_t offset, uint64_t bytes) {
    return (*holder)->part<Arenas>().ResolveOffset(offset, bytes).data();
  };
  auto session = MakeSession(OpenTransport(received, control, view, flight, resolve, stream), view);
  *holder = session.get();
  if (*stream != nullptr) session->part<Arenas>().AddStaging((*stream)->StagingMemory());
  SayServing(view);
  return session;
}

WorkerUsage UsageOf(const Session& session) {
  return {session.calls.total(), session.violations.load(), session.errors.load(std::memory_order_relaxed),
          session.copied_to_device.load(std::memory_order_relaxed),
          session.copied_to_host.load(std::memory_order_relaxed)};
}

// No clean-up that could hang in the driver: the process ends and the kernel returns everything. Under a
// sanitizer what nobody points to any more is reported first.
[[noreturn]] void EndProcess(int control, const GuestLink& guest, const Session& session, int code) {
  static std::mutex once;  // never released: the second thread to come here has nothing left to do
  once.lock();
  guest.SayGoodbye();
  const WorkerUsage usage = UsageOf(session);
  send(control, &usage, sizeof usage, MSG_DONTWAIT | MSG_NOSIGNAL);
  session.part<Arenas>()
      .ReleaseCallbackWords();  // the GPU has nothing to wait for when the driver takes it from us
  Log("session ended: " + std::to_string(usage.calls) + " calls, " +
      std::to_string(session.objects().live()) + " handles left");
#ifdef __SANITIZE_ADDRESS__
  __lsan_do_leak_check();
#endif
  _exit(code);
}

// CAUSEWAY_TURNS=0 in the daemon's environment: no record of its workers waits for a turn, so that what turns cost can be measured.
bool TakesTurns() {
  const char* text = std::getenv("CAUSEWAY_TURNS");
  return text == nullptr || std::strcmp(text, "0") != 0;
}

// False when the daemon has closed the control socket.
bool ReadAnswer(int control, DaemonLink* link, GuestLink* guest) {
  SharingReply reply;
  CheckpointAnswer answer;
  WorkerReach reach;
  WorkerResume resume;
  static_assert(sizeof answer < sizeof reply && sizeof reach < sizeof reply && sizeof resume < sizeof reply);
  int descriptor = -1;
  const ssize_t got = ReceivePacket(control, &reply, sizeof reply, std::span(&descriptor, 1), MSG_DONTWAIT);
  UniqueFd received(descriptor);
  if (got == static_cast<ssize_t>(sizeof resume)) {
    std::memcpy(&resume, &reply, sizeof resume);
    guest->Resume(resume, std::move(received));
  }
  if (got == static_cast<ssize_t>(sizeof reply)) link->Deliver(reply, std::move(received));
  if (got == static_cast<ssize_t>(sizeof answer)) {
    std::memcpy(&answer, &reply, sizeof answer);
    link->Deliver(answer);
  }
  if (got == static_cast<ssize_t>(sizeof reach)) {
    std::memcpy(&reach, &reply, sizeof reach);
    prctl(PR_SET_DUMPABLE, reach.number != 0 ? 1 : 0, 0, 0, 0);
    const WorkerReachable reachable{reach.number, {}};
    if (reach.number != 0) send(control, &reachable, sizeof reachable, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  return got != 0;
}

// What pools and graphs hold changes without a call that says so. Not the supervisor's work: asking the
// driver may take as long as the driver likes.
class AccountKeeper {
 public:
  // Asks the driver soon.
  void Look() {
    wanted_.fetch_add(1);
    wanted_.notify_one();
  }
  [[noreturn]] void Run() {
    for (uint32_t seen = 0;;) {
      wanted_.wait(seen);
      seen = wanted_.load();
      TheAccounting().Refresh();
    }
  }

 private:
  std::atomic<uint32_t> wanted_{0};
};

// Ends the session when the daemon or the guest process goes away, and reports what it uses meanwhile. While
// the session makes no calls it sleeps.
[[noreturn]] void Supervise(int control, GuestLink* guest, Session* session, DaemonLink* link,
                            AccountKeeper* accounts) {
  constexpr int kReportMs = 500, kForEver = -1;
  WorkerUsage last{};
  for (bool silent = false;;) {
    pollfd watched[3] = {{control, POLLIN, 0}, guest->Watched(), {session->calls.alarm(), POLLIN, 0}};
    poll(watched, 3, silent ? kForEver : kReportMs);  // descriptors below 0 are passed over
    const bool daemon_gone = (watched[0].revents & (POLLHUP | POLLERR)) != 0 ||
                             ((watched[0].revents & POLLIN) != 0 && !ReadAnswer(control, link, guest));
    if (daemon_gone || !guest->StillThere(watched[1])) EndProcess(control, *guest, *session, 0);
    if ((watched[2].revents & POLLIN) != 0) {
      session->calls.Quiet();
      silent = false;
      continue;  // reported with what comes until then
    }
    const WorkerUsage usage = UsageOf(*session);
    const bool changed = std::memcmp(&usage, &last, sizeof usage) != 0;
    if (changed) send(control, &usage, sizeof usage, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (changed || !silent) accounts->Look();
    silent = !changed && session->calls.Arm(usage.calls);
    last = usage;
  }
}

int Run(int control, const std::string& driver_path, const ConfinementOptions& options,
        bool allow_pageable_access) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_IGN);
  Confinement confinement(options);
  confinement.BeforeDriver(driver_path);
  HandleTable::PrepareFences();
  WorkerReady ready{};
  const bool caught = Output::Redirect();
  NoteCrashes();
  std::string error = caught ? StartDriverWithLateTimers(driver_path, allow_pageable_access, &ready)
                             : "cannot catch the driver's output";
  if (error.empty())
    error =
        confinement.AfterDriver(reinterpret_cast<void*>(TheDriver().cuInit), sandbox::Kind::kCuda, &ready);
  LeaveReadPages();
  if (!SendReady(control, error, driver_path, &ready,
                 error.empty() ? ShownDevices() : std::vector<NamedDevice>()))
    return 1;

  ReceivedAssignment received;
  const auto belong = [&](const WorkerScope& scope) { confinement.Belong(scope); };
  if (!ReceiveAssignment(control, belong, &received)) return 0;
  RegionView view;
  AccountPage* page = nullptr;
  FlightImage* flight = nullptr;
  if (MapSession(&received, &view, &page, &flight, &error))
    error = confinement.Enter(control, received.assignment);
  if (!error.empty()) {
    Log(error);
    return 1;
  }
  TheAccounting().Attach(page, received.assignment.account_cell);
  TcpServer* stream = nullptr;
  std::unique_ptr<Session> session = OpenSession(received, control, view, flight, &stream);
  DaemonLink link(control);
  session->set_daemon(&link);
  if (TakesTurns()) {
    session->gates().Attach(page, received.assignment.account_cell, TheAccounting().places(),
                            [control, serves = session.get()] {
                              const WorkerUsage usage = UsageOf(*serves);
                              send(control, &usage, sizeof usage, MSG_DONTWAIT | MSG_NOSIGNAL);
                            });
    session->gates().Watch(session->objects(), TheChannelGroups());
  }
  session->part<Channels>().Open(0);
  GuestLink guest(received, stream);
  static auto& accounts = *new AccountKeeper;  // its thread uses it to the end
  try {
    std::thread([serves = session.get(), context = warm_context.load()] {
      serves->gates().Prepare(context);
      accounts.Run();
    }).detach();
    std::thread(Supervise, control, &guest, session.get(), &link, &accounts).detach();
  } catch (const std::system_error& failure) {
    Log(NoThreadText(failure));
    EndProcess(control, guest, *session, 3);
  }
  session->part<Dispatcher>().Run();
  const std::string reason = session->reason();
  if (const std::string why = guest.EndReason(); !why.empty()) Log("the guest has not come back: " + why);
  if (!reason.empty()) Log(reason);
  EndProcess(control, guest, *session, reason.empty() ? 0 : 3);
}

}  // namespace
}  // namespace causeway::host

int main(int argc, char** argv) {
  CLI::App app{"Executes the CUDA calls of one guest process. Started by causewayd, not by hand."};
  int control = -1;
  std::string driver = "libcuda.so.1";
  app.add_option("--control-fd", control, "socket to the daemon")->required();
  app.add_option("--driver", driver, "CUDA driver library to execute calls with");
  std::string management;
  app.add_option("--management", management, "NVML library: serve a session of it, without the driver");
  bool all_devices = false;
  causeway::host::ConfinementOptions options;
  std::string sandbox = "enforce";
  app.add_option("--namespaces", options.namespaces, "what the parent has made this process's own");
  std::string users;
  app.add_option("--users", users, "FIRST,COUNT: the users that it may become");
  app.add_option("--device-group", options.device_group, "the group that opens GPUs where not everybody may");
  app.add_option("--gpus", options.gpus, "UUIDs of the GPUs whose device nodes it may open; default: all");
  app.add_option("--cache", options.cache, "folder below which the driver may keep compiled kernels");
  app.add_option("--sandbox", sandbox,
                 "enforce, report or learn: what becomes of calls outside of the profile");
  bool watch_memory = false;
  app.add_flag("--watch-memory", watch_memory, "with --management: tell the daemon what each process holds");
  app.add_flag("--all-devices", all_devices, "NVML also shows what CUDA_VISIBLE_DEVICES hides");
  bool allow_pageable_access = false;
  app.add_flag("--allow-pageable-access", allow_pageable_access,
               "serve devices whose kernels can access all memory of this process");
  int target = 0;
  app.add_option("--checkpoint", target, "serve no session: make one checkpoint call about that process");
  CLI11_PARSE(app, argc, argv);
  options.mode = causeway::sandbox::ModeOf(sandbox);
  if (target != 0) return causeway::host::RunCheckpointer(control, target, driver, options.mode);
  if (!users.empty() && std::sscanf(users.c_str(), "%u,%u", &options.first_user, &options.user_count) != 2)
    return 1;
  if (watch_memory) return causeway::host::RunMemoryWatch(control, management);
  if (!management.empty())
    return causeway::host::RunManagementWorker(control, management, all_devices, options);
  return causeway::host::Run(control, driver, options, allow_pageable_access);
}
