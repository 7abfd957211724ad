// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/aside.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace causeway::daemon {

Aside::Aside(EventLoop& loop) : loop_(loop), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  watch_ = loop_.Watch(event_.get(), EPOLLIN, "what was done aside", [this](uint32_t) { OnDone(); });
}

Aside::~Aside() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  loop_.Unwatch(watch_);
}

void Aside::Do(std::function<void()> work, std::function<void()> done) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back({std::move(work), std::move(done)});
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  changed_.notify_one();
}

void Aside::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job.work();
    lock.lock();
    if (!job.done) continue;
    done_.push_back(std::move(job.done));
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t told = write(event_.get(), &one, sizeof one);
  }
}

void Aside::OnDone() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(event_.get(), &count, sizeof count);
  std::vector<std::function<void()>> done;
  {
    const std::lock_guard lock(mutex_);
    done.swap(done_);
  }
  for (auto& each : done) each();
}

}  // namespace causeway::daemon
