// SPDX-License-Identifier: Apache-2.0
// What the driver logs, for the guest: it is collected while the guest listens, and handed out with the
// replies to its calls. Any thread may call these functions.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>

#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::host {

// As long as one lives, the calling thread's calls of the driver are the worker's own, such as those for the parameters of a kernel, the last
// of which fails: what the driver logs of them is not handed out.
class OwnCalls {
 public:
  OwnCalls() { ++count_; }
  ~OwnCalls() { --count_; }
  OwnCalls(const OwnCalls&) = delete;
  OwnCalls& operator=(const OwnCalls&) = delete;
  static bool Any() { return count_ != 0; }

 private:
  static constinit thread_local inline uint32_t count_ = 0;
};

class Logs {
 public:
  ~Logs();
  // Begins to collect; Forget ends it when it was called as often as Listen. The errors are the driver's.
  CUresult Listen();
  CUresult Forget();
  bool Pending() const { return pending_.load(std::memory_order_acquire); }
  // Takes lines out as pieces of {u32 kLogStream + level, u32 bytes, text}. The result is how many bytes they
  // are; 0: there is none.
  size_t Take(std::span<std::byte> space);

 private:
  static void CUDA_CB Collect(void* logs, CUlogLevel level, char* message, size_t bytes);
  struct Line {
    uint32_t level;
    std::string text;
  };
  std::mutex mutex_;
  std::deque<Line> lines_;
  std::atomic<bool> pending_{false};
  std::mutex listeners_mutex_;
  uint32_t listeners_ = 0;
  CUlogsCallbackHandle handle_ = nullptr;
};

}  // namespace causeway::host
