// SPDX-License-Identifier: Apache-2.0
// Gives memory of regions back to the system. A region of many GiB takes seconds, and whoever may write a region's file can hold the
// kernel's lock of that file for as long as it likes (a write whose bytes come from a file system or a page-fault handler of its own).
// So each region has a thread of its own for it, while there is something to do: one region's owner delays that region alone.
//
// The event loop's thread calls all of this.
#pragma once
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/loop/event_loop.h"
#include "host_backend/daemon/region/region.h"

namespace causeway::daemon {

class Zeroing {
 public:
  using JobId = uint64_t;  // 0: none
  // Called from the event loop, with 0 if all of it reads as zero, else with an error number (errno).
  using Done = std::function<void(int error)>;

  explicit Zeroing(EventLoop& loop);
  // Threads that the kernel keeps waiting go on without it, and nothing is called any more.
  ~Zeroing();
  Zeroing(const Zeroing&) = delete;
  Zeroing& operator=(const Zeroing&) = delete;

  // Jobs of one region are done one after the other, in this order. `done` runs later, never inside this call, unless the job is
  // cancelled.
  JobId Begin(std::shared_ptr<Region> region, std::vector<GranuleRange> ranges, Done done);
  // Repeatable; clears `job`. A granule (2 MiB) of it may still be zeroed afterwards, before anything of a later job of the region is.
  void Cancel(JobId& job);
  // While the daemon starts and serves nobody: waits until no job is left, at most so long, and calls what is due.
  void Await(std::chrono::milliseconds at_most);

 private:
  struct Job;
  struct Reports;
  using Queue = std::list<std::shared_ptr<Job>>;
  void StartFirst(Queue& queue);
  void OnReports();

  EventLoop& loop_;
  const std::shared_ptr<Reports> reports_;  // shared with the threads
  EventLoop::WatchId watch_ = 0;
  EventLoop::TimerId retry_ = 0;
  JobId last_ = 0;
  // By region, none of them empty. A thread does the first job; the others wait.
  std::map<const Region*, Queue> queues_;
};

}  // namespace causeway::daemon
