// SPDX-License-Identifier: Apache-2.0
// Threads that share the work of moving much memory: as many as this process has processors, eight at most,
// or CAUSEWAY_COPY_THREADS, the caller included. They start at the first use and sleep between jobs. A helper
// stays with its job and takes part after part by one atomic counter; only where several jobs are under way
// it goes from one to the next after each part, so that no copy waits for another. A forked child starts its
// own.
//
// They block all signals but those of faults: memory may be protected to see who touches it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace causeway::guest {

// How many threads there are for one job, the caller included.
uint32_t CopyThreadCount();
// How many a job should begin with that also waits for the device: three copy as much as the device takes in
// pieces, and what the program itself has to do needs processors too.
uint32_t PipelineThreadCount();
// How many it may take where that turns out to be too few.
uint32_t MostPipelineThreads();

// Which of the pool's threads the calling one is, from 1 on; 0: none.
uint32_t CopyThreadNumber();

// Runs work(argument, index) for every index below `count`, in the calling thread and up to so many others;
// returns when all are done. `work` must not wait for another job.
void RunInParallel(uint32_t count, void (*work)(void* argument, uint32_t index), void* argument,
                   uint32_t most_helpers = UINT32_MAX);

// memcpy by the calling thread and up to so many others, each part by one of them.
void CopyInParts(void* to, const void* from, uint64_t bytes, uint64_t part_bytes, uint32_t most_helpers);
// memcpy, in parallel where that pays.
void CopyInParallel(void* to, const void* from, uint64_t bytes);

// A job whose parts become possible bit by bit. Its owner offers them in order; owner and helpers take them
// in order and do each once.
class CopyJob {
 public:
  CopyJob() = default;
  virtual ~CopyJob() = default;
  CopyJob(const CopyJob&) = delete;
  CopyJob& operator=(const CopyJob&) = delete;

  // Up to `helpers` threads help from now on, as far as there are so many.
  void Join(uint32_t helpers);
  // From now on it is so many; one that is too many goes when it has nothing to do.
  void ChangeHelpers(uint32_t helpers);
  uint32_t helpers() const { return helpers_.load(std::memory_order_relaxed); }
  // How long helpers have waited for parts, all together, in ticks of the time stamp counter.
  uint64_t helpers_idle_ticks() const { return idle_ticks_.load(std::memory_order_relaxed); }
  // Takes back what nobody has begun, and returns when no helper is inside.
  void Leave();
  // Parts below `end` may be done.
  void Offer(uint64_t end);
  // Does one. False: none is left.
  bool DoOne();
  // Parts below it are done or in some thread's hands.
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
  std::atomic<bool> surplus_{false};  // one shall go
  std::atomic<uint64_t> idle_ticks_{0};
  std::atomic<uint32_t> inside_{0};   // changed with CopyThreads' lock
  std::atomic<bool> leaving_{false};  // helpers shall go
  bool owner_sleeps_ = false;         // guarded by CopyThreads
};

}  // namespace causeway::guest
