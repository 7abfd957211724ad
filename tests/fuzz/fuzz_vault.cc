// SPDX-License-Identifier: Apache-2.0
// What a daemon takes over from the one before it: records of any text with descriptors of every sort, or nearly as a daemon makes
// them, from a launcher that cannot always hand them over. The vault, the pool of workers and all servers that go on with what they
// find are the daemon's own; the launcher is one that keeps records and does nothing else. Of each record somebody takes charge, or
// it ends with its worker; after the end of the servers no session, no worker and no descriptor is left.
//
// Time is the fuzzer's (daemon_parts.h), and the launcher answers at once (the linker's --wrap, CMakeLists.txt).
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "host_backend/common/control_socket.h"
#include "ivshmem_ring/transport/packet.h"
#include "tests/fuzz/daemon_parts.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_records.h"

namespace causeway::fuzz {

extern "C" int __wrap_usleep(unsigned);
extern "C" int __wrap_usleep(unsigned) {
  return 0;
}

namespace {

using launcher::Action;

// Keeps records, and refuses whatever else can be refused.
class FakeLauncher {
 public:
  struct Kept {
    uint64_t key = 0;
    pid_t worker = 0;
    std::vector<UniqueFd> descriptors;
    uint8_t refusals = 0;  // how often its descriptors cannot be sent; 255: never can they
  };

  FakeLauncher(const std::string& path, int32_t version) : path_(path), version_(version) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    unlink(path.c_str());
    listener_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    Require(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    Require(listen(listener_.get(), 1) == 0);
  }
  ~FakeLauncher() { unlink(path_.c_str()); }

  // Somebody has connected.
  void Accept() {
    socket_.reset(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    launcher::Answer ready{};
    ready.status = version_;
    ready.pid = 2'000'000'000;  // nobody's
    Require(bool(socket_) && SendPacket(socket_.get(), &ready, sizeof ready, {}));
  }
  bool connected() const { return bool(socket_); }
  void AnswerOne();

  std::vector<Kept> records;
  std::set<pid_t> abandoned;
  std::multimap<pid_t, UniqueFd> living;

 private:
  void Take(const launcher::Request& request, launcher::Answer* answer, std::vector<int>* numbers);
  const std::string path_;
  const int32_t version_;
  UniqueFd listener_, socket_;
};

FakeLauncher* launcher_of_now = nullptr;

void FakeLauncher::Take(const launcher::Request& request, launcher::Answer* answer,
                        std::vector<int>* numbers) {
  if (request.number >= records.size()) {
    answer->error = ENOENT;
    return;
  }
  Kept& kept = records[request.number];
  answer->key = kept.key;
  answer->pid = kept.worker;
  if (kept.refusals != 0) {
    answer->error = ETOOMANYREFS;
    if (kept.refusals != 255) --kept.refusals;
    return;
  }
  for (const UniqueFd& each : kept.descriptors) numbers->push_back(each.get());
}

void FakeLauncher::AnswerOne() {
  static launcher::Request request;
  int received[launcher::kMaxKeptDescriptors];
  const ssize_t bytes = ReceivePacket(socket_.get(), &request, sizeof request, received, MSG_DONTWAIT);
  Require(bytes == ssize_t(sizeof request));
  std::vector<UniqueFd> descriptors;
  for (const int each : received) {
    if (each >= 0) descriptors.emplace_back(each);
  }
  launcher::Answer answer{};
  std::vector<int> numbers;
  const auto found = std::find_if(records.begin(), records.end(),
                                  [&](const Kept& kept) { return kept.key == request.link; });
  switch (request.action) {
    case Action::kTake:
      Take(request, &answer, &numbers);
      break;
    case Action::kKeep:
      Require(!descriptors.empty());
      if (found != records.end()) {
        found->descriptors = std::move(descriptors);
        found->worker = request.pid;
      } else {
        records.push_back({request.link, request.pid, std::move(descriptors), 0});
      }
      break;
    case Action::kForget:
      if (found == records.end()) answer.error = ENOENT;
      if (found != records.end()) records.erase(found);
      break;
    case Action::kKill:
    case Action::kAbandon:
      abandoned.insert(request.pid);
      living.erase(request.pid);
      break;
    case Action::kReap:
      answer.pid = request.pid;
      answer.status = SIGKILL;
      break;
    default:
      answer.error = EAGAIN;
  }
  Require(SendPacket(socket_.get(), &answer, sizeof answer, numbers));
}

}  // namespace

extern "C" int __real_connect(int socket, const sockaddr* address, socklen_t bytes);
extern "C" int __wrap_connect(int socket, const sockaddr* address, socklen_t bytes);
extern "C" int __wrap_connect(int socket, const sockaddr* address, socklen_t bytes) {
  const int result = __real_connect(socket, address, bytes);
  if (result == 0 && launcher_of_now != nullptr && !launcher_of_now->connected()) launcher_of_now->Accept();
  return result;
}
extern "C" ssize_t __real_sendmsg(int socket, const msghdr* message, int flags);
extern "C" ssize_t __wrap_sendmsg(int socket, const msghdr* message, int flags);
extern "C" ssize_t __wrap_sendmsg(int socket, const msghdr* message, int flags) {
  const ssize_t sent = __real_sendmsg(socket, message, flags);
  if (sent == ssize_t(sizeof(launcher::Request)) && launcher_of_now != nullptr) launcher_of_now->AnswerOne();
  return sent;
}

namespace {

const std::string& Folder() {
  static const struct Made {
    std::string path = MakeFolder();
    ~Made() {
      for (const char* name : {"/socket", "/socket.lock", "/socket.tls", "/socket.launcher", "/region"})
        unlink((path + name).c_str());
      rmdir(path.c_str());
    }
  } made;
  return made.path;
}

daemon::Config MakeConfig() {
  daemon::Config config;
  config.socket = Folder() + "/socket";
  config.worker = "/bin/true";  // the launcher starts nothing
  config.spare_workers = 0;
  config.local_region_mib = kRecordRegionMib;
  config.max_sessions = 4;
  config.local_max_sessions = 2;
  config.wait_for_guests_s = 60;
  daemon::VmConfig vm;
  vm.name = "vm";
  vm.region_file = Folder() + "/region";
  vm.region_mib = kRecordRegionMib;
  vm.max_sessions = 3;
  config.vms.push_back(vm);
  config.tcp.address = "127.0.0.1";
  config.tcp.max_sessions = 2;
  config.tls.hand_over = Folder() + "/socket.tls";
  return config;
}

// Everything of causewayd but main, Xen, doorbells and signals, from the start to the end.
class Host {
 public:
  Host() {
    auto found = daemon::LauncherLink::Find(parts_.loop, LauncherSocketOf(parts_.config.socket),
                                            [](const std::string&) {});
    Require(found.ok() && found.value() != nullptr);
    parts_.launcher = std::move(found.value());
    parts_.vault.Use(parts_.launcher.get());
  }
  // As Daemon::Start and TakeOver.
  void TakeOver(std::vector<std::string>* problems) {
    parts_.vault.Load(problems);
    auto lock = daemon::LocalServer::LockSocket(parts_.config.socket);
    Require(lock.ok());
    auto local = daemon::LocalServer::Start(parts_.services, std::move(lock.value()),
                                            [this](const std::string&) { return Status(); });
    auto remote = daemon::RemoteServer::Start(parts_.services);
    Require(local.ok() && remote.ok());
    parts_.local = std::move(local.value());
    parts_.remote = std::move(remote.value());
    parts_.pool.UseVault(&parts_.vault);
    folders_.UseLauncher(parts_.launcher.get());
    parts_.pool.Use(parts_.launcher.get(), &folders_);
    for (daemon::Vault::Record* record : parts_.vault.All(daemon::Vault::Kind::kShares)) {
      daemon::Vault::Record taken = parts_.vault.Adopt(*record);
      parts_.share_settings.Restore(taken.state);
      parts_.vault.Drop(taken.key);
    }
    parts_.pool.TakeOver();
    auto vm = daemon::VmServer::Add(parts_.services, parts_.config.vms[0]);
    auto tcp = daemon::TcpServer::Start(parts_.services);
    Require(vm.ok() && tcp.ok());
    parts_.vm = std::move(vm.value());
    parts_.tcp = std::move(tcp.value());
    parts_.local->TakeOver();
    parts_.tcp->TakeOver();
    parts_.remote->TakeOver();
    parts_.local->KeepListener();
    parts_.tcp->KeepListener();
    parts_.remote->KeepListener();
    parts_.pool.ResumeShared();
    parts_.vault.EndUntaken();
    parts_.vault.AwaitAll();
    Require(!parts_.vault.has_records());
    parts_.pool.FinishTakingOver();
  }
  void Run(uint32_t rounds) { parts_.Run(rounds); }
  void Stop() {
    parts_.local->Stop();
    parts_.tcp->Stop();
    parts_.remote->Stop();
    parts_.vm->Stop();
    parts_.pool.Stop();
  }
  bool Quiet() {
    return parts_.pool.empty() && parts_.launcher->idle() && parts_.scopes.live_sessions() == 0;
  }
  std::string Status() { return parts_.Status(); }

 private:
  // Nothing of a record's folders: what it names as such is removed with it.
  daemon::WorkerFolders folders_{
      Json{{"users", false}, {"folder", ""}, {"shm", ""}, {"cache", ""}, {"links", ""}}, UniqueFd()};
  DaemonParts parts_{MakeConfig()};
};

// What the launcher keeps at first; a key belongs to one record. False: a worker or client of these has something else
// in the place of its process or socket, and so does not end.
bool FillLauncher(Input& input, FakeLauncher* launcher) {
  std::set<uint64_t> keys;
  bool all_end = true;
  for (int count = input.Byte() % 16; count > 0; --count) {
    Record made = SomeRecord(input);
    if (!keys.insert(made.key).second) continue;
    const uint8_t refusals = input.Byte();
    FakeLauncher::Kept kept{made.key, made.worker, std::move(made.descriptors), 0};
    if (refusals > 240) kept.refusals = refusals == 255 ? 255 : uint8_t(refusals - 240);
    launcher->records.push_back(std::move(kept));
    all_end = all_end && made.ends;
    if (made.lives) launcher->living.emplace(made.worker, std::move(made.lives));
  }
  return all_end;
}

// Which one it is tells more than where this stopped.
void RequireOf(uint64_t key, bool holds) {
  if (!holds) fprintf(stderr, "fuzz_vault: record %016llx\n", static_cast<unsigned long long>(key));
  Require(holds);
}

// All workers that there were have ended, and of the records none is left but what is said here.
void RequireNothingLeft(const FakeLauncher& launcher, const std::map<uint64_t, pid_t>& before) {
  for (const auto& [key, worker] : before) RequireOf(key, worker <= 0 || launcher.abandoned.contains(worker));
  // What it shares and its images stay, for the daemon that follows one that was killed, and so does its own listener. A daemon that
  // stops ends them with its launcher.
  using daemon::RecordKind;
  for (const auto& record : launcher.records) {
    const auto kind = RecordKind(record.key >> 56);
    const bool own = kind == RecordKind::kListener && !before.contains(record.key);
    RequireOf(record.key, own || kind == RecordKind::kShared || kind == RecordKind::kImage);
  }
}

// What other threads do takes long on a busy machine: so many pauses are 20 s at least.
constexpr int kLooks = 200'000;
void Pause() {
  const timespec pause{0, 100'000};
  nanosleep(&pause, nullptr);
}

// The number that the next descriptor gets. What is never closed fills the numbers below it, so that a leak shows after a few inputs; to
// look at each number took half of an execution.
int NextDescriptor() {
  const UniqueFd next(eventfd(0, EFD_CLOEXEC));
  Require(bool(next));
  return next.get();
}

void Try(Input& input) {
  FakeLauncher launcher(LauncherSocketOf(Folder() + "/socket"), input.Byte() % 8 == 0 ? 1 : 2);
  const bool all_end = FillLauncher(input, &launcher);
  std::map<uint64_t, pid_t> before;
  for (const auto& record : launcher.records) before[record.key] = record.worker;
  launcher_of_now = &launcher;
  {
    Host host;
    std::vector<std::string> problems;
    host.TakeOver(&problems);
    for (const std::string& problem : problems) Require(problem.ends_with("."));
    // What could not be fetched has ended.
    for (const auto& record : launcher.records) RequireOf(record.key, record.refusals != 255);
    host.Run(1 + input.Byte() % 16);
    host.Status();
    host.Stop();
    EndPeers();  // a session that was refused is there until its client leaves
    constexpr int kFewLooks = 200;
    for (int looks = 0; looks < (all_end ? kLooks : kFewLooks) && !(looks > 1 && host.Quiet()); ++looks) {
      host.Run(8);
      if (looks >= kFewLooks) Pause();  // memory is zeroed by other threads
    }
    Require(!all_end || host.Quiet());
  }
  launcher_of_now = nullptr;
  if (all_end) RequireNothingLeft(launcher, before);
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::fuzz;
  static const bool begun = [] {
    signal(SIGPIPE, SIG_IGN);
    Require(causeway::daemon::StartLog("", causeway::daemon::LogLevel::kError, false).empty());
    return true;
  }();
  Require(begun);
  Input input(data, size);
  Try(input);
  // What other threads close or zero may be open for a moment, on a busy machine for long; something is opened once and stays.
  constexpr int kOnce = 16;
  for (int looks = 0; looks < 1000 && causeway::daemon::ClosingBacklog() != 0; ++looks) Pause();
  static const int first = NextDescriptor();
  for (int looks = 0; looks < kLooks && NextDescriptor() > first + kOnce; ++looks) Pause();
  Require(NextDescriptor() <= first + kOnce);
  return 0;
}
