// SPDX-License-Identifier: Apache-2.0
// Threads that copy between the program's memory and staging buffers, beside the thread whose copy it is: one
// processor copies a quarter of what the GPU's link carries. All copies of the process share them by turns, a
// unit of one and then a unit of the next.
#pragma once
#include <atomic>
#include <cstdint>

namespace causeway::guest {

// One copy, in numbered units. Its owner offers units as they become possible; owner and helpers take them in
// order and do each once.
class CopyJob {
 public:
  CopyJob() = default;
  virtual ~CopyJob() = default;
  CopyJob(const CopyJob&) = delete;
  CopyJob& operator=(const CopyJob&) = delete;

  // Up to `helpers` threads help from now on, as far as there are so many.
  void Join(uint32_t helpers);
  // Takes back what nobody has begun, and returns when no helper is inside.
  void Leave();
  // Units below `end` may be copied.
  void Offer(uint64_t end);
  // Copies one unit. False: none is left.
  bool CopyOne();

 protected:
  virtual void CopyUnit(uint64_t unit) = 0;

 private:
  friend class CopyHelpers;
  bool HasUnits() const {
    return taken_.load(std::memory_order_relaxed) < offered_.load(std::memory_order_relaxed);
  }
  std::atomic<uint64_t> taken_{0}, offered_{0};
  bool joined_ = false;
  uint32_t helpers_ = 0, inside_ = 0;  // guarded by CopyHelpers
};

// CAUSEWAY_COPY_THREADS, or by the processors that this process may use: threads that copy, the caller's own
// included.
uint32_t CopyJobThreads();

}  // namespace causeway::guest
