// SPDX-License-Identifier: Apache-2.0
// Bytes of registered memory that are exchanged with the host by comparing them instead of by watching their pages: those on a page on
// which others have bytes too, which may never be taken away from the program, and small ranges, for which comparing is cheaper.
// A shadow copy has each range as both sides last had it. Bytes that the program has changed since go to the host before work starts,
// and bytes that the host has changed come while work is in flight and when it is done. Where both change bytes of one word, both survive.
//
// In which order bytes were written is a guess, as for pages (guest_lib/managed/areas.h): of what has changed in a range the first and the
// last word go last, because one of them may be a flag that says that the rest is there.
//
// The program may have unmapped its memory without unregistering it, and reading it could then end the process. So Linux copies the bytes
// into a pipe, and fails where none are mapped; and before any are written it is asked whether they may be.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
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
  // Whether the program has changed any byte since bytes were last exchanged, or such bytes are on their way.
  bool Changed();

  // The thread that serves pages (pager.cc) calls these. Spans stay valid until the next call.

  // Begins to compare the range. The program's bytes are the valid ones. False: there is no memory for it, or the range is longer than
  // kMost.
  bool Add(uint64_t address, uint64_t bytes);
  // Ends with all ranges in [begin, end).
  void Remove(uint64_t begin, uint64_t end);
  // Adds what the program has changed: to *data, and what may be flags to *flags, which goes last. Sent is to be called when it has gone.
  void AddChanges(std::vector<ManagedSpan>* data, std::vector<ManagedSpan>* flags);
  void Sent() { sending_.store(false); }
  // Adds all ranges, to be read from the host, as often as it takes; Take then gives the program what has changed there. True: something
  // has.
  void AddAll(std::vector<ManagedSpan>* spans);
  bool Take();
  // In a forked child: from now on there are no ranges. Takes no lock, which a thread of the parent may have held.
  void Abandon() { count_.store(0); }

 private:
  struct Range {
    uint64_t bytes;
    std::byte* shadow;  // as many bytes; those that were read from the host follow
    bool sent = false;  // the host has had the range once
    std::byte* read() const { return shadow + bytes; }
  };
  // A part of a range in which something has changed.
  struct Part {
    uint64_t address;
    const Range* range;
    uint64_t begin, end;
  };
  struct Parts {
    std::vector<Part> data, ends;
  };
  bool Open();
  // Copies the program's bytes to now_. False: there are none any more.
  bool Look(uint64_t address, uint64_t bytes);
  std::vector<std::pair<uint64_t, Range*>> LookAtAll();
  static void AddParts(uint64_t address, const Range& range, Parts* parts);
  static void SortEnds(Parts* parts);
  static void Store(const Part& part);

  Mutex<Lock::kComparedBytes> mutex_;  // guards what follows; its holder touches no watched page
  std::map<uint64_t, Range> ranges_;   // by address
  std::atomic<size_t> count_{0};       // of them
  std::atomic<bool> sending_{false};
  int pipe_[2] = {-1, -1};
  std::vector<std::byte> now_;  // kMost bytes
};

// Of this process.
ComparedBytes& TheComparedBytes();

}  // namespace causeway::guest
