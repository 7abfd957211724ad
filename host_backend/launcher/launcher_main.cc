// SPDX-License-Identifier: Apache-2.0
// causeway-launcher: started by causewayd, before that gives up what it has. Holds the few capabilities that
// workers need to be made (docs/sandbox.md) and does nothing but what protocol.h lists.
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "host_backend/launcher/launcher.h"
#include "host_backend/launcher/worker_child.h"
#include "host_backend/sandbox/filter.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::launcher {
namespace {

// SETPCAP: to make the set that bounds a worker as small as what it has. The kernel takes the choice of its
// address space from a program that it could give more to.
constexpr uint64_t kKept = 1u << CAP_SETUID | 1u << CAP_SETGID | 1u << CAP_SETPCAP | 1u << CAP_SYS_ADMIN |
                           1u << CAP_KILL | 1u << CAP_CHOWN | 1u << CAP_SYS_PTRACE;

[[noreturn]] void Fail(const char* what, const char* why) {
  fprintf(stderr, "causeway-launcher: %s: %s; start causewayd, which starts this program\n", what, why);
  exit(1);
}

bool ReadUsers(const char* text, UserRange* users) {
  char end = '\0';
  if (sscanf(text, "%u,%u%c", &users->first, &users->count, &end) != 2) return false;
  constexpr uint32_t kEnd = uint32_t{1} << 31;
  return users->count == 0 ||
         (users->first >= 1000 && users->first < kEnd && users->count <= kEnd - users->first);
}

Settings ReadOptions(std::span<char* const> arguments) {
  Settings settings;
  std::string users, group, keep;
  const std::pair<std::string_view, std::string*> texts[] = {{"--worker", &settings.worker},
                                                             {"--workers", &settings.workers},
                                                             {"--driver", &settings.driver},
                                                             {"--cache", &settings.cache},
                                                             {"--management", &settings.management},
                                                             {"--shm", &settings.shm},
                                                             {"--users", &users},
                                                             {"--sandbox", &settings.sandbox},
                                                             {"--links", &settings.links},
                                                             {"--group", &group},
                                                             {"--keep", &keep}};
  for (size_t at = 1; at < arguments.size(); ++at) {
    const std::string_view name = arguments[at];
    const bool shows_all = name == "--all-devices", allows = name == "--allow-pageable-access";
    settings.shows_all |= shows_all;
    settings.allow_pageable_access |= allows;
    if (shows_all || allows) continue;
    const auto* text = std::find_if(std::begin(texts), std::end(texts),
                                    [&](const auto& each) { return each.first == name; });
    if (text == std::end(texts) || ++at == arguments.size()) Fail("options", "unknown");
    *text->second = arguments[at];
    if (text->second == &group) settings.groups.push_back(gid_t(strtoul(arguments[at], nullptr, 10)));
  }
  settings.keep_s = unsigned(strtoul(keep.c_str(), nullptr, 10));
  if (!users.empty() && !ReadUsers(users.c_str(), &settings.users)) Fail("--users", "no range of user ids");
  if (settings.worker.empty() || settings.worker[0] != '/') Fail("--worker", "no path of a program");
  return settings;
}

// What the daemon was started with is no worker's, and neither is the socket.
void CloseInherited(bool listens) {
  fcntl(kDaemonSocket, F_SETFD, FD_CLOEXEC);
  if (listens) fcntl(kDaemonListener, F_SETFD, FD_CLOEXEC);
  const int last = listens ? kDaemonListener : kDaemonSocket;
  constexpr int kOldKernels = 4096;
  if (syscall(SYS_close_range, last + 1, ~0U, 0) == 0) return;
  for (int each = last + 1; each < kOldKernels; ++each) close(each);
}

void OnChild(int) {}

// Kept descriptors are open files of this process.
void MakeRoomForRecords() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// The user that this process had from the start, and nobody else. The peer's number; 0: it is none of these.
pid_t PeerOf(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  const bool known = getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0;
  return known && peer.uid == geteuid() ? peer.pid : 0;
}

bool SayReady() {
  Answer ready{};
  ready.pid = getpid();
  ready.status = kVersion;
  return SendPacket(kDaemonSocket, &ready, sizeof ready, {});
}

// Whether another daemon came before the time was over. It then has the old one's place.
bool AwaitDaemon(Launcher& launcher, unsigned seconds, const sigset_t& waiting) {
  timespec begin{}, now{};
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (now = begin; now.tv_sec - begin.tv_sec < time_t(seconds); clock_gettime(CLOCK_MONOTONIC, &now)) {
    constexpr timespec kLook{1, 0};
    pollfd listener{kDaemonListener, POLLIN, 0};
    const int events = ppoll(&listener, 1, &kLook, &waiting);
    launcher.ReapHelpers();
    if (events <= 0) continue;
    const UniqueFd next(accept4(kDaemonListener, nullptr, nullptr, SOCK_CLOEXEC));
    const pid_t peer = next ? PeerOf(next.get()) : 0;
    if (peer == 0 || dup3(next.get(), kDaemonSocket, O_CLOEXEC) < 0) continue;
    launcher.Serve(peer);
    if (SayReady()) return true;
  }
  return false;
}

int Run(int argc, char** argv) {
  const Settings settings = ReadOptions({argv, size_t(argc)});
  CloseInherited(settings.keep_s != 0);
  if (settings.keep_s == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
  } else {
    MakeRoomForRecords();
  }
  // A terminal's or systemd's signals are for the daemon, whose end is this one's. Children begin without.
  sigset_t all, waiting;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  struct sigaction action {};
  action.sa_handler = OnChild;
  sigaction(SIGCHLD, &action, nullptr);
  waiting = all;
  sigdelset(&waiting, SIGCHLD);
  if (!sandbox::kSanitized) prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  if (!settings.shm.empty()) LimitSharedMemory(settings.shm.c_str());
  if (!KeepCapabilities(kKept)) Fail("capabilities", strerror(errno));
  if (!sandbox::kSanitized) {
    if (const std::string why = InstallLauncherFilter(settings.users); !why.empty())
      Fail("system call filter", why.c_str());
  }
  Launcher launcher(settings, OwnActs());
  if (!SayReady()) return 1;
  for (bool serving = true; serving;) {
    pollfd socket{kDaemonSocket, POLLIN, 0};
    const int events = ppoll(&socket, 1, nullptr, &waiting);
    if (events > 0) serving = AnswerRequest(launcher, kDaemonSocket);
    launcher.ReapHelpers();
    if (!serving) serving = launcher.Outlive() && AwaitDaemon(launcher, settings.keep_s, waiting);
  }
  return 0;
}

}  // namespace
}  // namespace causeway::launcher

int main(int argc, char** argv) {
  return causeway::launcher::Run(argc, argv);
}
