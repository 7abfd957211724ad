// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/region/zeroing.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include "host_backend/daemon/loop/hand_off.h"

namespace causeway::daemon {
namespace {

// When no thread could be had.
constexpr std::chrono::milliseconds kThreadAgain{100};

}  // namespace

struct Zeroing::Job {
  JobId id = 0;
  std::shared_ptr<Region> region;
  std::vector<GranuleRange> ranges;
  Done done;  // empty: it was cancelled
  bool started = false;
  std::atomic<bool> cancelled{false};
  int error = 0;  // the thread's until it has reported the job
};

struct Zeroing::Reports {
  HandOff<std::shared_ptr<Job>> finished;
  const UniqueFd event{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

Zeroing::Zeroing(EventLoop& loop) : loop_(loop), reports_(std::make_shared<Reports>()) {
  watch_ = loop_.Watch(reports_->event.get(), EPOLLIN, "zeroed memory", [this](uint32_t) { OnReports(); });
}

Zeroing::~Zeroing() {
  for (auto& [region, queue] : queues_) {
    for (auto& job : queue) job->cancelled = true;
  }
  loop_.Cancel(retry_);
  loop_.Unwatch(watch_);
}

Zeroing::JobId Zeroing::Begin(std::shared_ptr<Region> region, std::vector<GranuleRange> ranges, Done done) {
  Queue& queue = queues_[region.get()];
  auto job = std::make_shared<Job>();
  job->id = ++last_;
  job->region = std::move(region);
  job->ranges = std::move(ranges);
  job->done = std::move(done);
  queue.push_back(std::move(job));
  if (queue.size() == 1) StartFirst(queue);
  return last_;
}

void Zeroing::Cancel(JobId& job) {
  const JobId id = std::exchange(job, 0);
  if (id == 0) return;
  for (auto& [region, queue] : queues_) {
    const auto found = std::ranges::find(queue, id, [](const auto& each) { return each->id; });
    if (found == queue.end()) continue;
    (*found)->cancelled = true;
    (*found)->done = {};
    return;
  }
}

void Zeroing::Await(std::chrono::milliseconds at_most) {
  const auto end = Clock::now() + at_most;
  while (!queues_.empty()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd event{reports_->event.get(), POLLIN, 0};
    if (left <= 0 || (poll(&event, 1, int(left)) < 0 && errno != EINTR)) return;
    OnReports();
  }
}

void Zeroing::StartFirst(Queue& queue) {
  std::shared_ptr<Job>& job = queue.front();
  const auto zero = [job, reports = reports_]() mutable {
    // The event loop's own may be a better one (event_loop.h); this is not urgent.
    setpriority(PRIO_PROCESS, id_t(syscall(SYS_gettid)), 0);
    for (const GranuleRange& range : job->ranges) {
      for (uint32_t each = 0; each < range.count && !job->cancelled; ++each) {
        if (!job->region->ZeroGranules(range.first + each, 1)) job->error = errno;
      }
    }
    reports->finished.Put(std::move(job));
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t told = write(reports->event.get(), &one, sizeof one);
  };
  try {
    std::thread(zero).detach();
    job->started = true;
  } catch (const std::system_error&) {
    if (retry_ != 0) return;
    retry_ = loop_.After(kThreadAgain, "a thread that zeroes", [this] {
      retry_ = 0;
      for (auto& [region, each] : queues_) {
        if (!each.front()->started) StartFirst(each);
      }
    });
  }
}

void Zeroing::OnReports() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(reports_->event.get(), &count, sizeof count);
  for (const std::shared_ptr<Job>& job : reports_->finished.TakeAll()) {
    const auto found = queues_.find(job->region.get());
    found->second.pop_front();
    while (!found->second.empty() && found->second.front()->cancelled) found->second.pop_front();
    if (found->second.empty()) {
      queues_.erase(found);
    } else {
      StartFirst(found->second);
    }
    if (job->done) std::exchange(job->done, {})(job->error);
  }
}

}  // namespace causeway::daemon
