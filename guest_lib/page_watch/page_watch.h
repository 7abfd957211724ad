// SPDX-License-Identifier: Apache-2.0
// How a touch of a page of managed memory is noticed, and how the touching thread is held up until the page
// is there. There are two ways, of which a process uses one:
//
//   userfaultfd  The kernel holds up the thread that touches a page, in the program or inside of a system
//                call, and reports the fault to a descriptor (page_watch_userfaultfd.cc).
//   signals      Pages are protected, and the handler of SIGSEGV asks for them (page_watch_signals.cc).
//                System calls answer EFAULT instead of waiting, and a thread that blocks the signal dies.
//
// The pages belong to a memory file and are mapped shared; a second mapping, the alias, is not watched. The
// thread that serves the faults calls these functions and touches no watched page. Any thread may call Ring.
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
  // There is no memory: a touch is the program's own fault. Pages begin in this state, without protection.
  kAbsent,
  kNone,  // every touch is held up
  kRead,  // writes are held up
  kWrite,
  kFree,  // not watched, or no longer: pages need not exist, and the file's are what the program meets
};

class PageWatch {
 public:
  // The watch of this process, chosen at the first call: userfaultfd where the kernel lets this process use
  // it for system calls too, else signals; or what CAUSEWAY_MANAGED_FAULTS names.
  static PageWatch& Get();

  virtual ~PageWatch() = default;
  // Whether touches inside of system calls are held up like any other.
  virtual bool serves_system_calls() const = 0;
  // Whether Access::kRead is possible.
  virtual bool notices_writes() const = 0;

  // From now on touches are held up, and reported to `claim`, in the touching thread, or by TakeFaults. To be
  // called again when the program may have installed a signal handler of its own.
  virtual void Arm(FaultClaim claim) = 0;
  // Changes what the program may do with the pages, all of which were `from`. To less than before: what the
  // program wrote is in the file when this returns, and nothing is written afterwards. To more than kNone:
  // threads that are held up there go on.
  virtual void Set(const WatchedPages& pages, Access from, Access to) = 0;
  // Lets threads that are held up there touch the page again, which may be something else by now.
  virtual void TryAgain(uint64_t begin, uint64_t end) = 0;

  // Makes the present or the next Wait return. Any thread may call it, also in a signal handler.
  virtual void Ring() = 0;
  // Waits until Ring is called, a fault is to be taken, or so many nanoseconds have passed; negative: without
  // such a bound.
  virtual void Wait(int64_t nanoseconds) = 0;
  // Takes up to `most` faults and returns how many; 0: none is left.
  virtual size_t TakeFaults(PageFault* faults, size_t most) = 0;

 protected:
  PageWatch() = default;
};

// Make one of the two, which is the caller's to delete. Null: this process cannot use it. `notice_writes`: hold
// up writes apart from reads where the kernel can.
PageWatch* MakeUserfaultfdWatch(bool notice_writes = true);
PageWatch* MakeSignalsWatch();

}  // namespace causeway::guest
