// SPDX-License-Identifier: Apache-2.0
// What the driver logs, for the guest: it is collected while the guest listens, and handed out with the
// replies to its calls. Any thread may call these functions.
#pragma once
#include <atomic>
#include <cstddef>
#include <deque>
#include <mutex>
#include <span>
#include <string>

#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::host {

class Logs {
 public:
  // As long as one lives, what the driver logs of the calling thread's calls is not handed out: they are calls that the program did not
  // make, such as for the parameters of a kernel, the last of which fails.
  class Apart {
   public:
    Apart() { ++apart_; }
    ~Apart() { --apart_; }
    Apart(const Apart&) = delete;
    Apart& operator=(const Apart&) = delete;
  };
  ~Logs();
  // Begins to collect; Forget ends it when it was called as often as Listen. The errors are the driver's.
  CUresult Listen();
  CUresult Forget();
  bool Pending() const { return pending_.load(std::memory_order_acquire); }
  // Takes lines out as pieces of {u32 kLogStream + level, u32 bytes, text}. The result is how many bytes they
  // are; 0: there is none.
  size_t Take(std::span<std::byte> space);

 private:
  static constinit thread_local inline uint32_t apart_ = 0;
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
