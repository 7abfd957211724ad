// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/loop/worker_fd.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "host_backend/daemon/loop/hand_off.h"

namespace causeway::daemon {
namespace {

class Closer {
 public:
  Closer() {
    std::thread([this] { Run(); }).detach();
  }
  void Add(UniqueFd descriptor) { waiting_.Put(std::move(descriptor)); }

 private:
  [[noreturn]] void Run() {
    // The event loop's own may be a better one (event_loop.h); what others left is not urgent.
    setpriority(PRIO_PROCESS, id_t(syscall(SYS_gettid)), 0);
    for (;;) waiting_.AwaitAll();  // and closes them
  }

  HandOff<UniqueFd> waiting_;  // at most what the process may have open
};

}  // namespace

void CloseAside(UniqueFd descriptor) {
  if (!descriptor) return;
  static auto& closer = *new Closer;  // its thread uses it to the end
  closer.Add(std::move(descriptor));
}

}  // namespace causeway::daemon
