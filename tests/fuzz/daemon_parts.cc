// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/daemon_parts.h"

#include <stdlib.h>
#include <sys/epoll.h>

#include <chrono>

#include "host_backend/daemon/loop/loop_work.h"

namespace causeway::fuzz {
namespace {

// Later than any machine has run: threads that wait for a while by the real clock wait until they are woken.
int64_t now_ns = 1'000'000'000'000'000'000;

}  // namespace

#define STEADY_NOW "_ZNSt6chrono3_V212steady_clock3nowEv"
#define THREAD_READ "_ZNK8causeway6daemon11ThreadClock4ReadEv"
std::chrono::steady_clock::time_point FuzzedNow() asm("__wrap_" STEADY_NOW);
std::chrono::steady_clock::time_point FuzzedNow() {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(now_ns));
}
// What the thread has used decides nothing, and to ask for it twice for each piece of work was half of an
// execution.
daemon::ThreadClock::Reading ReadNow(const daemon::ThreadClock*) asm("__wrap_" THREAD_READ);
daemon::ThreadClock::Reading ReadNow(const daemon::ThreadClock*) {
  daemon::ThreadClock::Reading reading;
  reading.now = FuzzedNow();
  return reading;
}
extern "C" int __real_epoll_wait(int epoll, epoll_event* events, int most, int timeout);
extern "C" int __wrap_epoll_wait(int epoll, epoll_event* events, int most, int timeout);
extern "C" int __wrap_epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
  const int count = __real_epoll_wait(epoll, events, most, 0);
  now_ns += count == 0 && timeout > 0 ? int64_t{timeout} * 1'000'000 : 1'000;
  return count;
}

daemon::StatusReport DaemonParts::Report() const {
  daemon::StatusReport report;
  local->AppendStatus(report.sessions);
  tcp->AppendStatus(report.sessions);
  remote->AppendStatus(report.sessions);
  vm->AppendStatus(report.sessions, report.regions);
  return report;
}

std::string MakeFolder() {
  for (const std::string base : {"/dev/shm", "/tmp"}) {
    std::string folder = base + "/causeway-fuzz-XXXXXX";
    if (mkdtemp(folder.data()) != nullptr) return folder;
  }
  abort();
}

}  // namespace causeway::fuzz
