// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/region/zeroing.h"

namespace causeway::daemon {
namespace {

constexpr std::chrono::microseconds kPiece{1'000};  // a granule that was begun is finished

}  // namespace

Zeroing::~Zeroing() {
  loop_.Cancel(timer_);
}

Zeroing::JobId Zeroing::Begin(std::shared_ptr<Region> region, std::vector<GranuleRange> ranges,
                              std::function<void(bool)> done) {
  jobs_.push_back({++last_, std::move(region), std::move(ranges), std::move(done), true});
  Schedule();
  return last_;
}

void Zeroing::Cancel(JobId& job) {
  jobs_.remove_if([&](const Job& entry) { return entry.id == job; });
  job = 0;
}

void Zeroing::Schedule() {
  if (timer_ != 0 || jobs_.empty()) return;
  timer_ = loop_.After(std::chrono::nanoseconds(0), "zeroing", [this] {
    timer_ = 0;
    Piece();
  });
}

void Zeroing::Piece() {
  if (jobs_.empty()) return;
  Job job = std::move(jobs_.front());
  jobs_.pop_front();
  const auto end = Clock::now() + kPiece;
  while (!job.ranges.empty()) {
    GranuleRange& range = job.ranges.back();
    if (range.count != 0) {
      job.good = job.region->ZeroGranules(range.first, 1) && job.good;
      ++range.first;
      --range.count;
    }
    if (range.count == 0) job.ranges.pop_back();
    if (Clock::now() >= end) break;
  }
  if (job.ranges.empty()) {
    job.done(job.good);
  } else {
    jobs_.push_back(std::move(job));
  }
  Schedule();
}

}  // namespace causeway::daemon
