// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/worker_fd.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace causeway::daemon {
namespace {

class Closer {
 public:
  Closer() {
    std::thread([this] { Run(); }).detach();
  }
  void Add(UniqueFd descriptor) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(descriptor));
    changed_.notify_one();
  }

 private:
  [[noreturn]] void Run() {
    // The event loop's own may be a better one (event_loop.h); what others left is not urgent.
    setpriority(PRIO_PROCESS, id_t(syscall(SYS_gettid)), 0);
    for (;;) {
      std::vector<UniqueFd> taken;
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !waiting_.empty(); });
      taken.swap(waiting_);
      lock.unlock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<UniqueFd> waiting_;  // at most what the process may have open
};

}  // namespace

void CloseAside(UniqueFd descriptor) {
  if (!descriptor) return;
  static auto& closer = *new Closer;  // its thread uses it to the end
  closer.Add(std::move(descriptor));
}

}  // namespace causeway::daemon
