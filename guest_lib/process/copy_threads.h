// SPDX-License-Identifier: Apache-2.0
// Threads that share the work of moving much memory. There are as many as this process has processors, eight
// at most, or CAUSEWAY_COPY_THREADS, the caller included. They start at the first use and sleep between jobs.
// A helper stays with its job and takes part after part by one atomic counter; only where there are several
// jobs does it change after each part, so that no copy waits for another. A forked child starts its own.
//
// The threads block all signals but those of faults, because the library protects memory to find out when it
// is touched. Any thread may call these functions.
#pragma once
#include <atomic>
#include <cstdint>

namespace causeway::guest {

// How many threads there are for one job, the caller included.
uint32_t CopyThreadCount();
// How many threads a job should begin with that also waits for the device: three copy as much as the device
// takes in pieces, and the program needs processors too.
uint32_t PipelineThreadCount();
// How many threads such a job may use where that turns out to be too few.
uint32_t MostPipelineThreads();

// The number of the calling thread among the pool's threads, from 1 on; 0: it is none of them.
uint32_t CopyThreadNumber();

// Runs work(argument, index) for every index below `count`, in the calling thread and up to most_helpers
// others, and returns when all are done. `work` must not wait for another job.
void RunInParallel(uint32_t count, void (*work)(void* argument, uint32_t index), void* argument,
                   uint32_t most_helpers = UINT32_MAX);

// A memcpy in parts of part_bytes, by the calling thread and up to most_helpers others.
void CopyInParts(void* to, const void* from, uint64_t bytes, uint64_t part_bytes, uint32_t most_helpers);
// A memcpy, in parallel where that pays.
void CopyInParallel(void* to, const void* from, uint64_t bytes);

// A job of which the parts become possible one after the other. Its owner, one thread, offers them in order;
// owner and helpers take them in order, and each part is done once.
class CopyJob {
 public:
  CopyJob() = default;
  virtual ~CopyJob() = default;
  CopyJob(const CopyJob&) = delete;
  CopyJob& operator=(const CopyJob&) = delete;

  // Lets up to `helpers` threads help from now on, if there are so many.
  void Join(uint32_t helpers);
  // Changes the number of helpers; a surplus helper leaves when it has nothing to do.
  void ChangeHelpers(uint32_t helpers);
  uint32_t helpers() const { return helpers_.load(std::memory_order_relaxed); }
  // How long all helpers together have waited for parts, in ticks of the time stamp counter.
  uint64_t helpers_idle_ticks() const { return idle_ticks_.load(std::memory_order_relaxed); }
  // Takes back the parts that were not begun, and returns when no helper works on the job any more.
  void Leave();
  // Allows the parts below `end` to be done.
  void Offer(uint64_t end);
  // Does one part in the calling thread. False: no part is left.
  bool DoOne();
  // All parts below this one are done, or a thread does them.
  uint64_t taken() const { return taken_.load(std::memory_order_acquire); }

 protected:
  virtual void Do(uint64_t part) = 0;

 private:
  friend class CopyThreads;
  bool HasParts() const {
    return taken_.load(std::memory_order_relaxed) < offered_.load(std::memory_order_relaxed);
  }
  std::atomic<uint64_t> taken_{0}, offered_{0};
  bool joined_ = false;
  std::atomic<uint32_t> helpers_{0};
  std::atomic<bool> surplus_{false};  // one helper is to leave
  std::atomic<uint64_t> idle_ticks_{0};
  std::atomic<uint32_t> inside_{0};   // helpers that work on the job; changed with CopyThreads' lock
  std::atomic<bool> leaving_{false};  // all helpers are to leave
  bool owner_sleeps_ = false;         // guarded by CopyThreads
};

}  // namespace causeway::guest
