// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/process/launcher_link.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "host_backend/daemon/process/unix_listener.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::daemon {
namespace {

using launcher::Action;
using launcher::Answer;
using launcher::Request;

// An answer takes some hundred microseconds. A launcher that hangs this long is as good as dead, and all sessions end with it: on one
// emulated processor that a host and three guests shared, a launcher with nothing wrong was silent for 10 s.
constexpr std::chrono::seconds kPatience{20};
// While the daemon waits for an answer itself, as at its start.
constexpr timeval kCallPatience{10, 0};
// On their way at once: these fit into the socket, so that sending never waits.
constexpr size_t kMostAsked = 4;

Request Of(Action action) {
  Request request{};
  request.action = action;
  return request;
}

Request Of(Action action, pid_t worker) {
  Request request = Of(action);
  request.pid = worker;
  return request;
}

// In the daemon's status.
std::string_view NameOf(Action action) {
  constexpr std::string_view kNames[] = {"launcher",
                                         "launcher: start",
                                         "launcher: kill",
                                         "launcher: reap",
                                         "launcher: abandon",
                                         "launcher: give to group",
                                         "launcher: find VM",
                                         "launcher: make cache",
                                         "launcher: hold cache",
                                         "launcher: clear cache",
                                         "launcher: checkpoint",
                                         "launcher: give to user",
                                         "launcher: keep",
                                         "launcher: forget",
                                         "launcher: take",
                                         "launcher: end",
                                         "launcher: watch cache"};
  static_assert(std::size(kNames) == size_t(Action::kWatchCache) + 1);
  return kNames[size_t(action)];
}

std::vector<UniqueFd> CopyOf(int file) {
  std::vector<UniqueFd> copies;
  copies.emplace_back(fcntl(file, F_DUPFD_CLOEXEC, 0));
  return copies;
}

std::vector<std::string> Arguments(const std::string& program, const LauncherPlan& plan) {
  std::vector<std::string> arguments = {program};
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) arguments.insert(arguments.end(), {name, value});
  };
  add("--worker", plan.worker);
  add("--workers", plan.workers);
  add("--driver", plan.driver);
  add("--management", plan.management);
  add("--sandbox", plan.sandbox);
  add("--users", std::to_string(plan.users.first) + "," + std::to_string(plan.users.second));
  if (plan.nvml_shows_all) arguments.emplace_back("--all-devices");
  if (plan.allow_pageable_access) arguments.emplace_back("--allow-pageable-access");
  add("--shm", plan.shm);
  add("--links", plan.links);
  add("--cache", plan.cache);
  if (plan.keep_s != 0) add("--keep", std::to_string(plan.keep_s));
  for (const gid_t group : plan.groups) add("--group", std::to_string(group));
  return arguments;
}

// "" or what is to be said of the launcher.
std::string WhyNotSpoken(int32_t version) {
  if (version >= launcher::kOldestVersion && version <= launcher::kVersion) return {};
  return "speaks version " + std::to_string(version) +
         " of its protocol, and this causewayd, " CAUSEWAY_VERSION ", versions " +
         std::to_string(launcher::kOldestVersion) + " to " + std::to_string(launcher::kVersion);
}

// What a process that is not root has, its programs have by the ambient set alone.
void PassCapabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (geteuid() == 0 || syscall(SYS_capget, &header, data) != 0) return;
  for (auto& word : data) word.inheritable = word.permitted;
  syscall(SYS_capset, &header, data);
  for (unsigned capability = 0; capability < 64; ++capability) {
    if ((data[capability / 32].permitted >> (capability % 32) & 1) != 0)
      prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0);
  }
}

// Of the child: nothing of the daemon stays open in it.
[[noreturn]] void Execute(const std::vector<char*>& arguments, int socket, int listener, int null) {
  PassCapabilities();
  dup2(null, STDIN_FILENO);
  // First away from the numbers that they are to have: each may have the other's.
  socket = fcntl(socket, F_DUPFD_CLOEXEC, launcher::kDaemonListener + 1);
  if (listener >= 0) {
    listener = fcntl(listener, F_DUPFD_CLOEXEC, launcher::kDaemonListener + 1);
    dup2(listener, launcher::kDaemonListener);
  }
  dup2(socket, launcher::kDaemonSocket);  // without O_CLOEXEC
  fcntl(launcher::kDaemonSocket, F_SETFD, 0);
  execv(arguments[0], arguments.data());
  _exit(127);
}

}  // namespace

Result<std::unique_ptr<LauncherLink>> LauncherLink::Start(EventLoop& loop, const std::string& program,
                                                          const LauncherPlan& plan,
                                                          std::function<void(const std::string&)> on_end) {
  if (access(program.c_str(), X_OK) != 0)
    return Error{"The launcher " + program + " cannot be executed: " + ErrnoText() +
                 "; it belongs beside causewayd."};
  int ends[2];
  UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return Error{"No socket for the launcher: " + ErrnoText() + "."};
  UniqueFd own(ends[0]), other(ends[1]);
  WorkerFd listener;
  if (plan.keep_s != 0) {
    auto bound = BindListener({plan.socket, "socket", 0600, "", "", SOCK_SEQPACKET, true});
    if (!bound.ok()) return Error{bound.error()};
    listener = std::move(bound.value());
  }
  setsockopt(own.get(), SOL_SOCKET, SO_RCVTIMEO, &kCallPatience, sizeof kCallPatience);
  setsockopt(own.get(), SOL_SOCKET, SO_SNDTIMEO, &kCallPatience, sizeof kCallPatience);
  std::vector<std::string> arguments = Arguments(program, plan);
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) return Error{"The launcher cannot be started: " + ErrnoText() + "."};
  if (pid == 0) Execute(pointers, other.get(), listener.get(), null.get());
  std::unique_ptr<LauncherLink> link(new LauncherLink(loop, std::move(on_end)));
  LauncherLink* self = link.get();
  self->pid_ = pid;
  self->keeps_ = plan.keep_s != 0;
  self->socket_ = std::move(own);
  other.reset();
  Answer ready{};
  UniqueFd none;
  if (!self->Receive(&ready, &none))
    return Error{"The launcher " + program + " does not start; its output is the daemon's."};
  self->version_ = ready.status;
  if (const std::string why = WhyNotSpoken(ready.status); !why.empty())
    return Error{"The launcher " + program + " " + why + "; it belongs to another release than causewayd."};
  self->watch_ =
      loop.Watch(self->socket_.get(), EPOLLIN, "the launcher", [self](uint32_t) { self->OnAnswer(); });
  return link;
}

Result<std::unique_ptr<LauncherLink>> LauncherLink::Find(EventLoop& loop, const std::string& socket,
                                                         std::function<void(const std::string&)> on_end) {
  std::unique_ptr<LauncherLink> none;
  sockaddr_un address{};
  if (socket.size() >= sizeof(address.sun_path)) return none;
  address.sun_family = AF_UNIX;
  socket.copy(address.sun_path, sizeof(address.sun_path) - 1);
  UniqueFd own(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!own || connect(own.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return none;
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(own.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.uid != geteuid())
    return none;
  setsockopt(own.get(), SOL_SOCKET, SO_RCVTIMEO, &kCallPatience, sizeof kCallPatience);
  setsockopt(own.get(), SOL_SOCKET, SO_SNDTIMEO, &kCallPatience, sizeof kCallPatience);
  std::unique_ptr<LauncherLink> link(new LauncherLink(loop, std::move(on_end)));
  LauncherLink* self = link.get();
  self->socket_ = std::move(own);
  self->keeps_ = self->leave_ = true;
  Answer ready{};
  UniqueFd unwanted;
  if (!self->Receive(&ready, &unwanted)) {
    if (errno != EAGAIN) return none;  // it ended at this moment
    return Error{"The launcher at " + socket +
                 " serves another causewayd, or hangs; end it, or wait until it ends."};
  }
  self->version_ = ready.status;
  if (const std::string why = WhyNotSpoken(ready.status); !why.empty()) {
    self->pid_ = -1;  // it is left as it is, for a daemon that it understands
    return Error{"The launcher at " + socket + ", process " + std::to_string(ready.pid) + ", " + why +
                 "; install the release that has started it, or end that process, and its sessions with it."};
  }
  // The socket was bound by the daemon that started the launcher: its pid is that one's, and the launcher's comes here.
  self->pid_ = ready.pid;
  self->watch_ =
      loop.Watch(self->socket_.get(), EPOLLIN, "the launcher", [self](uint32_t) { self->OnAnswer(); });
  return link;
}

LauncherLink::~LauncherLink() {
  loop_.Cancel(patience_);
  loop_.Unwatch(watch_);
  if (socket_ && keeps_ && !leave_) {
    const Request end = Of(Action::kEnd);
    SendPacket(socket_.get(), &end, sizeof end, {});
  }
  socket_.reset();
  if (!leave_) AwaitEnd();
}

// It ends with its socket. One that does not, because somebody has stopped it, is ended.
int LauncherLink::AwaitEnd() {
  constexpr int kLooks = 200;
  constexpr useconds_t kPauseMicroseconds = 10'000;
  int status = 0;
  const pid_t pid = std::exchange(pid_, -1);
  if (pid < 0) return status;
  for (int looks = 0; looks < kLooks; ++looks, usleep(kPauseMicroseconds)) {
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    // It may be no child of this process, but of a daemon of before.
    if (ended == pid || (ended < 0 && kill(pid, 0) != 0 && errno == ESRCH)) return status;
  }
  kill(pid, SIGKILL);
  // One that the kernel holds ends when it may; nobody waits for that.
  for (int looks = 0; looks < kLooks && waitpid(pid, &status, WNOHANG) == 0; ++looks)
    usleep(kPauseMicroseconds);
  return status;
}

bool LauncherLink::Receive(Answer* answer, UniqueFd* descriptor, int flags) {
  int received = -1;
  ssize_t bytes = 0;
  do {
    bytes = ReceivePacket(socket_.get(), answer, sizeof *answer, std::span(&received, 1), flags);
  } while (bytes < 0 && errno == EINTR);
  descriptor->reset(received);
  if (bytes >= 0) errno = 0;
  // An older one's is shorter, and what it leaves out is zero.
  return bytes >= ssize_t(offsetof(Answer, key));
}

void LauncherLink::Lost(bool hangs) {
  if (!socket_) return;
  loop_.Unwatch(watch_);
  loop_.Cancel(patience_);
  socket_.reset();
  const int status = AwaitEnd();
  std::string text = "the launcher ended with exit status " + std::to_string(WEXITSTATUS(status));
  if (WIFSIGNALED(status)) text = "the launcher was killed by signal " + std::to_string(WTERMSIG(status));
  if (hangs) text = "the launcher did not answer";
  Answer none{};
  none.error = EPIPE;
  while (!asked_.empty()) Take(none, {}, false);
  for (Unsent& unsent : std::exchange(unsent_, {})) {
    asked_.push_back(std::move(unsent.asked));
    Take(none, {}, false);
  }
  loop_.Later("the launcher's end", [this, text] { on_end_(text); });
}

// The oldest answer that is to come.
void LauncherLink::LimitWait() {
  loop_.Cancel(patience_);
  if (asked_.empty() || !socket_) return;
  patience_ = loop_.After(kPatience, "the launcher's silence", [this] { Lost(true); });
}

void LauncherLink::Send(const Request& request, const std::vector<UniqueFd>& descriptors, Asked asked) {
  std::vector<int> numbers;
  for (const UniqueFd& each : descriptors) numbers.push_back(each.get());
  asked_.push_back(std::move(asked));
  if (SendPacket(socket_.get(), &request, sizeof request, numbers)) {
    if (asked_.size() == 1) LimitWait();
    return;
  }
  // The kernel counts the descriptors that are on their way between all processes of a user, whoever has sent
  // them: a full count is a reason to refuse this request, and none to take the launcher for lost.
  if (errno != ETOOMANYREFS) return Lost(errno == EAGAIN);
  const Asked refused = std::move(asked_.back());
  asked_.pop_back();
  Answer answer{};
  answer.error = ETOOMANYREFS;
  Finish(refused, answer, {}, true);
}

void LauncherLink::Ask(const Request& request, std::vector<UniqueFd> descriptors, Asked asked) {
  const LoopPart part(NameOf(request.action));
  if (!socket_) {
    asked_.push_back(std::move(asked));
    Answer none{};
    none.error = EPIPE;
    return Take(none, {}, false);
  }
  if (unsent_.empty() && asked_.size() < kMostAsked) return Send(request, descriptors, std::move(asked));
  unsent_.push_back({std::make_unique<Request>(request), std::move(descriptors), std::move(asked)});
}

void LauncherLink::SendUnsent() {
  while (socket_ && !unsent_.empty() && asked_.size() < kMostAsked) {
    Unsent next = std::move(unsent_.front());
    unsent_.pop_front();
    Send(*next.request, next.descriptors, std::move(next.asked));
  }
}

// The answer of the oldest request. `waiting`: a caller waits for its own, and nobody else is to be called
// meanwhile.
void LauncherLink::Take(const Answer& answer, UniqueFd descriptor, bool waiting) {
  const Asked asked = std::move(asked_.front());
  asked_.pop_front();
  Finish(asked, answer, std::move(descriptor), waiting || !socket_);
}

void LauncherLink::Finish(const Asked& asked, const Answer& answer, UniqueFd descriptor, bool later) {
  if (!asked.done) return;
  if (asked.at_once || !later) return asked.done(answer, std::move(descriptor));
  const auto kept = std::make_shared<UniqueFd>(std::move(descriptor));
  loop_.Later("an answer of the launcher",
              [done = asked.done, answer, kept] { done(answer, std::move(*kept)); });
}

void LauncherLink::OnAnswer() {
  while (socket_) {
    Answer answer{};
    UniqueFd descriptor;
    if (!Receive(&answer, &descriptor, MSG_DONTWAIT)) {
      if (errno != EAGAIN) Lost(false);
      return;
    }
    if (asked_.empty()) return Lost(false);  // an answer that nobody has asked for
    Take(answer, std::move(descriptor), false);
    LimitWait();
    SendUnsent();
  }
}

Answer LauncherLink::Call(const Request& request, std::vector<UniqueFd> descriptors) {
  const LoopPart part("the launcher's answer");
  Answer result{};
  bool answered = false;
  Ask(request, std::move(descriptors),
      {[&](const Answer& answer, UniqueFd) {
         result = answer;
         answered = true;
       },
       true});
  while (!answered) AwaitAnswer();  // Lost answers for the launcher
  return result;
}

void LauncherLink::AwaitAnswer() {
  Answer answer{};
  UniqueFd descriptor;
  if (!Receive(&answer, &descriptor)) return Lost(errno == EAGAIN);
  Take(answer, std::move(descriptor), true);
  LimitWait();
  SendUnsent();
}

void LauncherLink::AwaitAll() {
  while (socket_ && !asked_.empty()) AwaitAnswer();
}

std::string LauncherLink::StartWorker(const Wish& wish, UniqueFd output, UniqueFd control,
                                      std::function<void(Result<Started>)> done) {
  Request request = Of(Action::kStart);
  request.worker = wish.kind;
  request.link = wish.link;
  request.worker_hash = wish.worker_hash;
  std::string gpus;
  for (const std::string& gpu : wish.gpus) gpus += (gpus.empty() ? "" : ",") + gpu;
  if (gpus.size() >= sizeof request.gpus) return "`gpus` is too long a list.";
  gpus.copy(request.gpus, sizeof request.gpus - 1);
  std::vector<std::string> names;
  for (const std::string& entry : wish.environment) {
    const std::string name = entry.substr(0, entry.find('='));
    // The first of one name is what getenv answers.
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    names.push_back(name);
    if (entry.size() + 1 > sizeof request.environment - request.environment_bytes)
      return "The CUDA_ variables of this process are longer than the " +
             std::to_string(sizeof request.environment) + " bytes that a worker can have; shorten them.";
    entry.copy(request.environment + request.environment_bytes, entry.size());
    request.environment_bytes += uint32_t(entry.size()) + 1;
  }
  std::vector<UniqueFd> descriptors;
  descriptors.push_back(std::move(output));
  descriptors.push_back(std::move(control));
  Ask(request, std::move(descriptors), {[done = std::move(done)](const Answer& answer, UniqueFd pidfd) {
        if (answer.error != 0)
          return done(Error{"A worker process cannot be started: " + ErrnoText(answer.error) + "."});
        done(Started{answer.pid, std::move(pidfd)});
      }});
  return {};
}

void LauncherLink::StartCheckpointer(pid_t target, uint32_t user, UniqueFd control,
                                     std::function<void(int error, pid_t checkpointer)> done) {
  Request request = Of(Action::kCheckpoint, target);
  request.user = user;
  std::vector<UniqueFd> descriptors;
  descriptors.push_back(std::move(control));
  Ask(request, std::move(descriptors),
      {[done = std::move(done)](const Answer& answer, UniqueFd) { done(answer.error, answer.pid); }});
}

void LauncherLink::Kill(pid_t worker) {
  Ask(Of(Action::kKill, worker), {}, {});
}

void LauncherLink::Reap(pid_t worker, std::function<void(int error, int status)> done) {
  Ask(Of(Action::kReap, worker), {},
      {[done = std::move(done)](const Answer& answer, UniqueFd) { done(answer.error, answer.status); }});
}

void LauncherLink::Abandon(pid_t worker) {
  Ask(Of(Action::kAbandon, worker), {}, {});
}

void LauncherLink::Hold(uint64_t key, std::span<const int> descriptors, const ClosingAccountRef& account) {
  if (!keeps_) return;
  Held& held = held_[key];
  std::move(held.now.begin(), held.now.end(), std::back_inserter(held.before));
  held.now.clear();
  for (const int each : descriptors) held.now.emplace_back(fcntl(each, F_DUPFD_CLOEXEC, 0), account);
}

void LauncherLink::Keep(uint64_t key, pid_t worker, const std::vector<int>& descriptors) {
  if (!keeps_) return;
  Request request = Of(Action::kKeep, worker);
  request.link = key;
  std::vector<UniqueFd> copies;
  for (const int each : descriptors) {
    copies.emplace_back(fcntl(each, F_DUPFD_CLOEXEC, 0));
    if (!copies.back()) return Forget(key);  // this process has no descriptor left: it ends with this daemon
  }
  // Where it is refused, no older record may say what is not so any more.
  const auto refused = [this, key](const Answer& answer, UniqueFd) {
    if (answer.error != 0) Forget(key);
  };
  std::shared_ptr<Copies> before;
  if (const auto held = held_.find(key); held != held_.end())
    before = std::make_shared<Copies>(std::exchange(held->second.before, {}));
  Ask(request, std::move(copies), {refused, true, std::move(before)});
  while (socket_ && !unsent_.empty()) AwaitAnswer();
}

void LauncherLink::Forget(uint64_t key) {
  if (!keeps_) return;
  Request request = Of(Action::kForget);
  request.link = key;
  auto before = std::make_shared<Copies>();
  if (auto held = held_.extract(key); !held.empty()) {
    *before = std::move(held.mapped().before);
    std::move(held.mapped().now.begin(), held.mapped().now.end(), std::back_inserter(*before));
  }
  Ask(request, {}, {{}, false, std::move(before)});
}

LauncherLink::Kept LauncherLink::Take(uint32_t number) {
  Request request = Of(Action::kTake);
  request.number = number;
  Answer answer{};
  int received[launcher::kMaxKeptDescriptors], flags = 0;
  Kept kept;
  if (!SendPacket(socket_.get(), &request, sizeof request, {})) {
    kept.error = errno;
    return kept;
  }
  ssize_t bytes = 0;
  do {
    bytes = ReceivePacket(socket_.get(), &answer, sizeof answer, received, 0, &flags);
  } while (bytes < 0 && errno == EINTR);
  kept.error = bytes < 0 ? errno : bytes < ssize_t(offsetof(Answer, key)) ? EPIPE : answer.error;
  for (const int each : received) {
    if (each >= 0) kept.descriptors.emplace_back(each);
  }
  kept.key = answer.key;
  kept.worker = answer.pid;
  if (kept.error != 0) return kept;
  // Every record has one: where it did not come, this process can open no more.
  if ((flags & MSG_CTRUNC) != 0 || kept.descriptors.empty()) kept.error = EMFILE;
  return kept;
}

int LauncherLink::GiveToGroup(int file, gid_t group) {
  Request request = Of(Action::kGiveToGroup);
  request.group = group;
  return Call(request, CopyOf(file)).error;
}

int LauncherLink::GiveToUser(int file, uid_t user) {
  Request request = Of(Action::kGiveToUser);
  request.user = user;
  return Call(request, CopyOf(file)).error;
}

UniqueFd LauncherLink::AskWithSocket(const Request& request, std::vector<UniqueFd> descriptors) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return {};
  UniqueFd own(ends[0]);
  descriptors.emplace_back(ends[1]);
  // Where it is refused the other end is closed without a word.
  Ask(request, std::move(descriptors), {});
  return own;
}

UniqueFd LauncherLink::FindVm(int region) {
  return AskWithSocket(Of(Action::kFindVm), CopyOf(region));
}

int LauncherLink::MakeCache(uint32_t user) {
  Request request = Of(Action::kMakeCache);
  request.user = user;
  return Call(request, {}).error;
}

UniqueFd LauncherLink::WatchCache(uint32_t user, uint32_t mib) {
  constexpr int32_t kWatches = 2;  // version
  Request request = Of(version_ >= kWatches ? Action::kWatchCache : Action::kHoldCache);
  request.user = user;
  request.number = mib;
  if (version_ >= kWatches) return AskWithSocket(request, {});
  Ask(request, {}, {});
  return {};
}

void LauncherLink::ClearCache(uint32_t user, uint32_t number) {
  Request request = Of(Action::kClearCache);
  request.user = user;
  request.number = number;
  Ask(request, {}, {});
}

std::string DropCapabilities() {
  // Without the right to change the bounding set no_new_privs does the same.
  for (int capability = 0; capability < 64; ++capability) prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{}, left[2]{};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || syscall(SYS_capset, &header, none) != 0 ||
      syscall(SYS_capget, &header, left) != 0) {
    return "The daemon cannot give up its capabilities: " + ErrnoText() + ".";
  }
  for (const auto& word : left) {
    if ((word.permitted | word.effective | word.inheritable) != 0)
      return "The daemon still has capabilities after it gave them up.";
  }
  return {};
}

}  // namespace causeway::daemon
