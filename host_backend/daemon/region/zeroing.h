// SPDX-License-Identifier: Apache-2.0
// Zeroing makes granules of regions read as zero, and gives their memory back to the kernel. For a region of many GiB this takes
// seconds, and the owner of a region's file can make it last for ever: the kernel locks the file while a process writes into it, and the
// process can withhold the bytes that it writes, by a page-fault handler (userfaultfd) or a file system of its own.
// Therefore each region that has something to zero is zeroed by a thread of its own, so that its owner delays no other region.
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
