// SPDX-License-Identifier: Apache-2.0
// Bytes of registered memory that are exchanged with the host by comparing them instead of by watching their pages: those on a page on
// which others have bytes too, which may never be taken away from the program, and small ranges, for which comparing is cheaper.
// A shadow copy has each range as both sides last had it. Bytes that the program has changed since go to the host before work starts,
// and bytes that the host has changed come while work is in flight and when it is done.
//
// The program may have unmapped its memory without unregistering it, and reading it could then end the process. So Linux copies the bytes
// into a memory file (pwrite), and fails where none are mapped.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "guest_lib/managed/link.h"
#include "guest_lib/process/lock_order.h"

namespace causeway::guest {

class ComparedBytes {
 public:
  // The most bytes of one range. Registrations of at most so many are compared whole.
  static constexpr uint64_t kMost = 16u << 10;

  // Any thread may call these.
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }
  // Whether the program has changed any byte since bytes were last exchanged.
  bool Changed();

  // The thread that serves pages (pager.cc) calls these. Spans stay valid until the next call.

  // Begins to compare the range. The host has zeros there and the program's bytes are the valid ones, so those that are not zero count as
  // changed. False: there is no memory for it, or the range is longer than kMost.
  bool Add(uint64_t address, uint64_t bytes);
  // Ends with all ranges in [begin, end).
  void Remove(uint64_t begin, uint64_t end);
  // Adds what the program has changed, which counts as the host's from then on.
  void AddChanges(std::vector<ManagedSpan>* spans);
  // Adds all ranges, to be read from the host; Take then gives the program what has changed there. True: something has.
  void AddAll(std::vector<ManagedSpan>* spans);
  bool Take();
  // In a forked child: from now on there are no ranges. Takes no lock, which a thread of the parent may have held.
  void Abandon() { count_.store(0); }

 private:
  struct Range {
    uint64_t bytes;
    std::byte* shadow;  // as many bytes; those that were read from the host follow
    std::byte* read() const { return shadow + bytes; }
  };
  bool Open();
  // Copies the program's bytes to now_. False: there are none any more.
  bool Look(uint64_t address, uint64_t bytes);

  Mutex<Lock::kComparedBytes> mutex_;  // guards what follows; its holder touches no watched page
  std::map<uint64_t, Range> ranges_;   // by address
  std::atomic<size_t> count_{0};       // of them
  int file_ = -1;                      // its first kMost bytes are mapped at now_
  std::byte* now_ = nullptr;
};

// Of this process.
ComparedBytes& TheComparedBytes();

}  // namespace causeway::guest
