// SPDX-License-Identifier: Apache-2.0
// Slices of a region that belongs to this process alone: who has which, and the way back to the machine of
// those that nobody needs any more. Returning pages and getting zeroed ones again is most of what registering
// memory costs, so slices stay as they are for a moment and are used first; a thread returns what is left
// over.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace causeway::guest {

class LocalSlices {
 public:
  // The region's file, and its owner table.
  LocalSlices(int fd, uint16_t* owners, uint64_t region_bytes);
  ~LocalSlices();
  LocalSlices(const LocalSlices&) = delete;
  LocalSlices& operator=(const LocalSlices&) = delete;

  // A run of granules. False: none of that length is left. *zeroed: all of its bytes are.
  bool Allocate(uint64_t granules, uint64_t* first, bool* zeroed);
  void Free(uint64_t first, uint64_t granules);

 private:
  enum class State : uint8_t {
    kFree,  // without pages: reads as zeros
    kUsed,
    kIdle,      // free, with pages and what was in them
    kReturning  // on the way from idle to free
  };
  static void* ThreadMain(void* self);
  void ReturnIdle();
  bool Find(uint64_t granules, bool idle_only, uint64_t* first) const;

  const int fd_;
  uint16_t* const owners_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<State> states_;
  uint64_t idle_ = 0, returning_ = 0;  // granules
  uint64_t round_ = 0;                 // of the thread's looks
  std::vector<uint64_t> idle_since_;   // round
  bool started_ = false, stop_ = false;
  bool asleep_ = false;  // the thread, until something is idle
};

}  // namespace causeway::guest
