// SPDX-License-Identifier: Apache-2.0
// Gives memory of regions back to the system, a piece at a time: a region of many GiB takes seconds, and the
// daemon's thread serves everybody. All jobs together take one piece a round of the event loop, in turn.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "host_backend/daemon/loop/event_loop.h"
#include "host_backend/daemon/region/region.h"

namespace causeway::daemon {

class Zeroing {
 public:
  using JobId = uint64_t;  // 0: none

  explicit Zeroing(EventLoop& loop) : loop_(loop) {}
  ~Zeroing();
  Zeroing(const Zeroing&) = delete;
  Zeroing& operator=(const Zeroing&) = delete;

  // `done(whether all of it reads as zero)` runs later, never inside this call, unless the job is cancelled.
  JobId Begin(std::shared_ptr<Region> region, std::vector<GranuleRange> ranges,
              std::function<void(bool)> done);
  // Repeatable; clears `job`.
  void Cancel(JobId& job);

 private:
  struct Job {
    JobId id;
    std::shared_ptr<Region> region;
    std::vector<GranuleRange> ranges;  // what is left; the last first
    std::function<void(bool)> done;
    bool good = true;
  };
  void Piece();
  void Schedule();

  EventLoop& loop_;
  JobId last_ = 0;
  std::list<Job> jobs_;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace causeway::daemon
