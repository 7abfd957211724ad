// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/launcher_link.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "host_backend/packet.h"

namespace causeway::daemon {
namespace {

using launcher::Action;
using launcher::Answer;
using launcher::Request;

// An answer takes some hundred microseconds. One that hangs this long is as good as dead.
constexpr timeval kPatience{10, 0};

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
  switch (action) {
    case Action::kStart:
      return "launcher: start";
    case Action::kKill:
      return "launcher: kill";
    case Action::kReap:
      return "launcher: reap";
    case Action::kAbandon:
      return "launcher: abandon";
    case Action::kGiveToGroup:
      return "launcher: give to group";
    case Action::kFindVm:
      return "launcher: find VM";
    case Action::kMakeCache:
      return "launcher: make cache";
    case Action::kHoldCache:
      return "launcher: hold cache";
    case Action::kClearCache:
      return "launcher: clear cache";
  }
  return "launcher";
}

std::vector<std::string> Arguments(const std::string& program, const LauncherPlan& plan) {
  std::vector<std::string> arguments = {
      program,
      "--worker",
      plan.worker,
      "--driver",
      plan.driver,
      "--management",
      plan.management,
      "--sandbox",
      plan.sandbox,
      "--users",
      std::to_string(plan.users.first) + "," + std::to_string(plan.users.second)};
  if (plan.nvml_shows_all) arguments.emplace_back("--all-devices");
  if (plan.allow_pageable_access) arguments.emplace_back("--allow-pageable-access");
  if (!plan.shm.empty()) arguments.insert(arguments.end(), {"--shm", plan.shm});
  if (!plan.links.empty()) arguments.insert(arguments.end(), {"--links", plan.links});
  if (!plan.cache.empty()) arguments.insert(arguments.end(), {"--cache", plan.cache});
  for (const gid_t group : plan.groups) arguments.insert(arguments.end(), {"--group", std::to_string(group)});
  return arguments;
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
[[noreturn]] void Execute(const std::vector<char*>& arguments, int socket, int null) {
  PassCapabilities();
  dup2(null, STDIN_FILENO);
  dup2(socket, launcher::kDaemonSocket);  // without O_CLOEXEC, unless it is that number already
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
  setsockopt(own.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  setsockopt(own.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  std::vector<std::string> arguments = Arguments(program, plan);
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) return Error{"The launcher cannot be started: " + ErrnoText() + "."};
  if (pid == 0) Execute(pointers, other.get(), null.get());
  std::unique_ptr<LauncherLink> link(new LauncherLink(loop, std::move(on_end)));
  LauncherLink* self = link.get();
  self->pid_ = pid;
  self->socket_ = std::move(own);
  other.reset();
  Answer ready{};
  UniqueFd none;
  if (!self->Receive(&ready, &none))
    return Error{"The launcher " + program + " does not start; its output is the daemon's."};
  self->watch_ =
      loop.Watch(self->socket_.get(), EPOLLIN, "the launcher", [self](uint32_t) { self->Lost(false); });
  return link;
}

LauncherLink::~LauncherLink() {
  loop_.Unwatch(watch_);
  socket_.reset();
  AwaitEnd();
}

// It ends with its socket. One that does not, because somebody has stopped it, is ended.
int LauncherLink::AwaitEnd() {
  constexpr int kLooks = 200;
  constexpr useconds_t kPauseMicroseconds = 10'000;
  int status = 0;
  const pid_t pid = std::exchange(pid_, -1);
  if (pid < 0) return status;
  for (int looks = 0; looks < kLooks; ++looks, usleep(kPauseMicroseconds)) {
    if (waitpid(pid, &status, WNOHANG) != 0) return status;
  }
  kill(pid, SIGKILL);
  waitpid(pid, &status, 0);
  return status;
}

bool LauncherLink::Receive(Answer* answer, UniqueFd* descriptor) {
  int received = -1;
  ssize_t bytes = 0;
  do {
    bytes = ReceivePacket(socket_.get(), answer, sizeof *answer, std::span(&received, 1));
  } while (bytes < 0 && errno == EINTR);
  descriptor->reset(received);
  return bytes == ssize_t(sizeof *answer);
}

void LauncherLink::Lost(bool hangs) {
  if (!socket_) return;
  loop_.Unwatch(watch_);
  socket_.reset();
  const int status = AwaitEnd();
  std::string text = "the launcher ended with exit status " + std::to_string(WEXITSTATUS(status));
  if (WIFSIGNALED(status)) text = "the launcher was killed by signal " + std::to_string(WTERMSIG(status));
  if (hangs) text = "the launcher did not answer";
  loop_.Later("the launcher's end", [this, text] { on_end_(text); });
}

Answer LauncherLink::Call(const Request& request, const std::vector<int>& descriptors, UniqueFd* descriptor) {
  const LoopPart part(NameOf(request.action));
  Answer answer{};
  answer.error = EPIPE;
  if (!socket_) return answer;
  UniqueFd received;
  errno = 0;
  if (!SendPacket(socket_.get(), &request, sizeof request, descriptors) || !Receive(&answer, &received)) {
    Lost(errno == EAGAIN);
    answer = {};
    answer.error = EPIPE;
    return answer;
  }
  if (descriptor != nullptr) *descriptor = std::move(received);
  return answer;
}

Result<LauncherLink::Started> LauncherLink::StartWorker(const Wish& wish, int output, int control) {
  Request request = Of(Action::kStart);
  request.worker = wish.kind;
  request.link = wish.link;
  std::string gpus;
  for (const std::string& gpu : wish.gpus) gpus += (gpus.empty() ? "" : ",") + gpu;
  if (gpus.size() >= sizeof request.gpus) return Error{"`gpus` is too long a list."};
  gpus.copy(request.gpus, sizeof request.gpus - 1);
  std::vector<std::string> names;
  for (const std::string& entry : wish.environment) {
    const std::string name = entry.substr(0, entry.find('='));
    // The first of one name is what getenv answers.
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    names.push_back(name);
    if (entry.size() + 1 > sizeof request.environment - request.environment_bytes)
      return Error{"The CUDA_ variables of this process are longer than the " +
                   std::to_string(sizeof request.environment) +
                   " bytes that a worker can have; shorten them."};
    entry.copy(request.environment + request.environment_bytes, entry.size());
    request.environment_bytes += uint32_t(entry.size()) + 1;
  }
  Started started;
  const Answer answer = Call(request, {output, control}, &started.pidfd);
  if (answer.error != 0) return Error{"A worker process cannot be started: " + ErrnoText(answer.error) + "."};
  started.pid = answer.pid;
  return started;
}

void LauncherLink::Kill(pid_t worker) {
  Call(Of(Action::kKill, worker), {});
}

bool LauncherLink::Reap(pid_t worker, int* status) {
  const Answer answer = Call(Of(Action::kReap, worker), {});
  *status = answer.status;
  return answer.error == 0;
}

void LauncherLink::Abandon(pid_t worker) {
  Call(Of(Action::kAbandon, worker), {});
}

int LauncherLink::GiveToGroup(int file, gid_t group) {
  Request request = Of(Action::kGiveToGroup);
  request.group = group;
  return Call(request, {file}).error;
}

UniqueFd LauncherLink::FindVm(int region) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return {};
  UniqueFd own(ends[0]);
  const UniqueFd other(ends[1]);
  return Call(Of(Action::kFindVm), {region, other.get()}).error == 0 ? std::move(own) : UniqueFd();
}

int LauncherLink::MakeCache(uint32_t user) {
  Request request = Of(Action::kMakeCache);
  request.user = user;
  return Call(request, {}).error;
}

int LauncherLink::HoldCache(uint32_t user, uint32_t mib) {
  Request request = Of(Action::kHoldCache);
  request.user = user;
  request.number = mib;
  return Call(request, {}).error;
}

int LauncherLink::ClearCache(uint32_t user, uint32_t number) {
  Request request = Of(Action::kClearCache);
  request.user = user;
  request.number = number;
  return Call(request, {}).error;
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
