// SPDX-License-Identifier: Apache-2.0
// The slices of a region that only this process and its worker share: which are in use, and when the memory
// of free ones goes back to the machine. A granule is one slice of kGranuleBytes. Returning pages and getting
// zeroed ones again is most of what registering memory costs, so a freed slice keeps its pages for up to half
// a second and is used first; then a thread of this class returns them.
//
// Any thread may call the public functions; no message is sent with the lock inside held.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <vector>

#include "guest_lib/process/lock_order.h"

namespace causeway::guest {

class LocalSlices {
 public:
  // `fd` is the region's file, and `owners` its owner table (ivshmem_ring/transport/layout.h), which says to
  // the worker which slices are taken. Both stay the caller's and outlive the object.
  LocalSlices(int fd, uint16_t* owners, uint64_t region_bytes);
  ~LocalSlices();
  LocalSlices(const LocalSlices&) = delete;
  LocalSlices& operator=(const LocalSlices&) = delete;

  // Takes a run of granules, whose first one is *first; it may wait until pages that are being returned are
  // free. False: no run of that length is left. *zeroed says whether all of its bytes are known to be zero.
  bool Allocate(uint64_t granules, uint64_t* first, bool* zeroed);
  void Free(uint64_t first, uint64_t granules);

 private:
  enum class State : uint8_t {
    kFree,  // has no pages: reads as zeros
    kUsed,
    kIdle,      // free, and still has its pages with what was in them
    kReturning  // its pages are being returned
  };
  static void* ThreadMain(void* self);
  void ReturnIdle();
  bool Find(uint64_t granules, bool idle_only, uint64_t* first) const;

  const int fd_;
  uint16_t* const owners_;
  Mutex<Lock::kLocalSlices> mutex_;
  ConditionVariable changed_;
  std::vector<State> states_;
  uint64_t idle_ = 0, returning_ = 0;  // how many granules are in these states
  uint64_t round_ = 0;                 // how often the thread has looked for idle slices
  std::vector<uint64_t> idle_since_;   // for each granule, the value of round_ when it became idle
  bool started_ = false, stop_ = false;
  bool asleep_ = false;  // the thread sleeps until a slice is idle
};

}  // namespace causeway::guest
