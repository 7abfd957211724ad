// SPDX-License-Identifier: Apache-2.0
// How many calls a session has made, counted by each thread on a line of its own, and an alarm that the next
// call raises, so that no thread has to look at a session that does nothing.
#pragma once
#include <atomic>
#include <cstdint>

#include "host_backend/common/unique_fd.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::host {

class CallCounter {
 public:
  CallCounter();

  // Counts a call. Any thread.
  void Note() {
    // Both sequentially consistent, as in Arm: one of the two sides sees the other.
    counts_[Place()].value.fetch_add(1);
    if (armed_.load()) Ring();
  }
  uint64_t total() const;

  // A descriptor that becomes readable, once armed, with the first call beyond `seen`, a total.
  int alarm() const { return alarm_.get(); }
  // False: there was such a call already.
  bool Arm(uint64_t seen);
  // After the alarm: until it is armed again.
  void Quiet();

 private:
  static constexpr uint32_t kPlaces = 32;  // threads that share one only share a line
  struct alignas(kHotBytes) Count {
    std::atomic<uint64_t> value{0};
  };
  static uint32_t Place() {
    static std::atomic<uint32_t> threads{0};
    thread_local const uint32_t place = threads.fetch_add(1, std::memory_order_relaxed) % kPlaces;
    return place;
  }
  void Ring();

  Count counts_[kPlaces];
  alignas(kHotBytes) std::atomic<bool> armed_{false};  // read for each call, rarely written
  UniqueFd alarm_;
};

}  // namespace causeway::host
