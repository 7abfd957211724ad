// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/loop/worker_fd.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "host_backend/daemon/loop/hand_off.h"

namespace causeway::daemon {
namespace {

constexpr int64_t kNothing = -1;  // is discarded

class Closer {
 public:
  Closer() {
    std::thread([this] { Run(); }).detach();
  }
  void Add(UniqueFd descriptor, int64_t discard_from) { waiting_.Put({std::move(descriptor), discard_from}); }

 private:
  [[noreturn]] void Run() {
    // The event loop's own may be a better one (event_loop.h); what others left is not urgent.
    setpriority(PRIO_PROCESS, id_t(syscall(SYS_gettid)), 0);
    for (;;) {
      for (const Left& left : waiting_.AwaitAll()) {  // and closes them
        struct stat info {};
        const bool discard = left.discard_from >= 0 && fstat(left.descriptor.get(), &info) == 0 &&
                             info.st_size > left.discard_from;
        if (discard)
          fallocate(left.descriptor.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, left.discard_from,
                    info.st_size - left.discard_from);
      }
    }
  }

  struct Left {
    UniqueFd descriptor;
    int64_t discard_from = kNothing;
  };
  HandOff<Left> waiting_;  // at most what the process may have open
};

void Leave(UniqueFd descriptor, int64_t discard_from) {
  if (!descriptor) return;
  static auto& closer = *new Closer;  // its thread uses it to the end
  closer.Add(std::move(descriptor), discard_from);
}

}  // namespace

void CloseAside(UniqueFd descriptor) {
  Leave(std::move(descriptor), kNothing);
}

void DiscardAside(UniqueFd file, int64_t from) {
  Leave(std::move(file), from);
}

}  // namespace causeway::daemon
