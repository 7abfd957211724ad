// SPDX-License-Identifier: Apache-2.0
// How touches of pages of managed memory are noticed and held up until somebody has seen to the page. One of
// two ways, for the life of the process:
//
//   userfaultfd  the kernel holds up whoever touches a page, in the program or inside of a system call, and
//                tells a descriptor (page_watch_userfaultfd.cc)
//   signals      pages are protected, and the handler of SIGSEGV asks for them (page_watch_signals.cc):
//                system calls answer EFAULT instead, and a thread that blocks the signal dies
//
// The pages belong to a file of memory and are mapped shared; a second mapping, the alias, is not watched.
// But for Ring, all is called by the thread that serves the faults, which touches no watched page.
#pragma once
#include <cstddef>
#include <cstdint>

#include "guest_lib/process/fault_handler.h"

namespace causeway::guest {

struct WatchedPages {
  uint64_t begin, end;
  std::byte* alias;  // the other mapping of the byte at `begin`
};

// What the program may do with pages.
enum class Access : uint8_t {
  kAbsent,  // there is no memory: touches are faults of the program's own. Pages begin so, without protection
  kNone,    // touches are held up
  kRead,    // writes are held up
  kWrite,
  kFree,  // not watched at all: pages need not exist
};

class PageWatch {
 public:
  // The one of this process, chosen at the first call: userfaultfd where the kernel lets this process use it
  // for system calls too, or what CAUSEWAY_MANAGED_FAULTS names.
  static PageWatch& Get();

  virtual ~PageWatch() = default;
  // Touches inside of system calls are held up like any other.
  virtual bool serves_system_calls() const = 0;
  // Access::kRead is possible.
  virtual bool notices_writes() const = 0;

  // Touches that are held up from now on are told to `claim`, in the touching thread, or to TakeFaults.
  // Again after the program may have installed a handler of its own.
  virtual void Arm(FaultClaim claim) = 0;
  // All of the pages were `from`. To less than before: what was written before the return is in the file, and
  // nothing is written afterwards. To more than kNone: threads that are held up there go on.
  virtual void Set(const WatchedPages& pages, Access from, Access to) = 0;
  // Threads that are held up there touch the page again: it may be something else by now.
  virtual void TryAgain(uint64_t begin, uint64_t end) = 0;

  // Any thread, also in a signal handler: Wait returns, the one under way or the next.
  virtual void Ring() = 0;
  // Until it rings, a fault is to be taken, or so many nanoseconds passed; negative: however long.
  virtual void Wait(int64_t nanoseconds) = 0;
  // At most so many; 0: none is left.
  virtual size_t TakeFaults(PageFault* faults, size_t most) = 0;

 protected:
  PageWatch() = default;
};

// Null where it cannot be had. `notice_writes`: where the kernel can.
PageWatch* MakeUserfaultfdWatch(bool notice_writes = true);
PageWatch* MakeSignalsWatch();

}  // namespace causeway::guest
