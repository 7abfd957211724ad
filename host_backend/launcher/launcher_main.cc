// SPDX-License-Identifier: Apache-2.0
// causeway-launcher: started by causewayd, before that gives up what it has. Holds the few capabilities that
// workers need to be made (docs/sandbox.md) and does nothing but what protocol.h lists.
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host_backend/launcher/launcher.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::launcher {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // a sanitizer traces the process that it looks at, workers' too
#else
constexpr bool kSanitized = false;
#endif

// SETPCAP: to make the set that bounds a worker as small as what it has. The kernel takes the choice of its
// address space from a program that it could give more to.
constexpr int kKept[] = {CAP_SETUID, CAP_SETGID, CAP_SETPCAP,   CAP_SYS_ADMIN,
                         CAP_KILL,   CAP_CHOWN,  CAP_SYS_PTRACE};

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

Settings ReadOptions(int argc, char** argv) {
  static constexpr option kOptions[] = {
      {"worker", required_argument, nullptr, 'w'},     {"driver", required_argument, nullptr, 'd'},
      {"management", required_argument, nullptr, 'm'}, {"sandbox", required_argument, nullptr, 's'},
      {"all-devices", no_argument, nullptr, 'a'},      {"allow-pageable-access", no_argument, nullptr, 'p'},
      {"users", required_argument, nullptr, 'u'},      {"shm", required_argument, nullptr, 'h'},
      {"links", required_argument, nullptr, 'l'},      {"cache", required_argument, nullptr, 'c'},
      {"group", required_argument, nullptr, 'g'},      {nullptr, 0, nullptr, 0}};
  Settings settings;
  for (int found = 0; (found = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    switch (found) {
      case 'w':
        settings.worker = optarg;
        break;
      case 'd':
        settings.driver = optarg;
        break;
      case 'm':
        settings.management = optarg;
        break;
      case 's':
        settings.sandbox = optarg;
        break;
      case 'a':
        settings.shows_all = true;
        break;
      case 'p':
        settings.allow_pageable_access = true;
        break;
      case 'h':
        settings.shm = optarg;
        break;
      case 'l':
        settings.links = optarg;
        break;
      case 'c':
        settings.cache = optarg;
        break;
      case 'g':
        settings.groups.push_back(gid_t(strtoul(optarg, nullptr, 10)));
        break;
      case 'u':
        if (!ReadUsers(optarg, &settings.users)) Fail("--users", "no range of user ids");
        break;
      default:
        Fail("options", "unknown");
    }
  }
  if (settings.worker.empty() || settings.worker[0] != '/') Fail("--worker", "no path of a program");
  return settings;
}

// What it does not need goes; what it has not is not missed until it is asked for.
bool KeepCapabilities() {
  uint64_t kept = 0;
  for (const int capability : kKept) kept |= uint64_t{1} << capability;
  for (int capability = 0; capability < 64; ++capability) {
    if ((kept >> capability & 1) == 0) prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
  }
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  for (unsigned word = 0; word < 2; ++word) {
    const uint32_t now = data[word].permitted & uint32_t(kept >> (32 * word));
    data[word] = {now, now, 0};
  }
  return syscall(SYS_capset, &header, data) == 0;
}

// What the daemon was started with is no worker's, and neither is the socket.
void CloseInherited() {
  fcntl(kDaemonSocket, F_SETFD, FD_CLOEXEC);
  constexpr int kOldKernels = 4096;
  if (syscall(SYS_close_range, kDaemonSocket + 1, ~0U, 0) == 0) return;
  for (int each = kDaemonSocket + 1; each < kOldKernels; ++each) close(each);
}

void OnChild(int) {}

// One request. False: the daemon is gone.
bool Serve(Launcher& launcher) {
  alignas(8) static Request request;
  int numbers[kMaxPacketDescriptors];
  request = {};
  const ssize_t bytes = ReceivePacket(kDaemonSocket, &request, sizeof request, numbers, MSG_TRUNC);
  if (bytes < 0) return errno == EINTR || errno == EAGAIN;
  if (bytes == 0) return false;
  UniqueFd descriptors[kMaxPacketDescriptors];
  size_t count = 0;
  for (const int number : numbers) {
    if (number >= 0) descriptors[count++].reset(number);
  }
  UniqueFd handed;
  const Answer answer = launcher.Handle(request, size_t(bytes), std::span(descriptors, count), &handed);
  const int number = handed.get();
  return SendPacket(kDaemonSocket, &answer, sizeof answer, std::span(&number, handed ? 1 : 0));
}

int Run(int argc, char** argv) {
  const Settings settings = ReadOptions(argc, argv);
  CloseInherited();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // A terminal's or systemd's signals are for the daemon, whose end is this one's. Children begin without.
  sigset_t all, waiting;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  struct sigaction action {};
  action.sa_handler = OnChild;
  sigaction(SIGCHLD, &action, nullptr);
  waiting = all;
  sigdelset(&waiting, SIGCHLD);
  if (!kSanitized) prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  if (!KeepCapabilities()) Fail("capabilities", strerror(errno));
  if (!kSanitized) {
    if (const std::string why = InstallLauncherFilter(settings.users); !why.empty())
      Fail("system call filter", why.c_str());
  }
  Launcher launcher(settings);
  const Answer ready{};
  if (!SendPacket(kDaemonSocket, &ready, sizeof ready, {})) return 1;
  for (bool serving = true; serving;) {
    pollfd socket{kDaemonSocket, POLLIN, 0};
    const int events = ppoll(&socket, 1, nullptr, &waiting);
    if (events > 0) serving = Serve(launcher);
    launcher.ReapHelpers();
  }
  return 0;
}

}  // namespace
}  // namespace causeway::launcher

int main(int argc, char** argv) {
  return causeway::launcher::Run(argc, argv);
}
