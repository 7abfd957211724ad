// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/loop/aside.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace causeway::daemon {

Aside::Aside(EventLoop& loop) : loop_(loop), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  watch_ = loop_.Watch(event_.get(), EPOLLIN, "what was done aside", [this](uint32_t) { OnDone(); });
}

Aside::~Aside() {
  if (thread_.joinable()) {
    jobs_.Put({{}, {}, true});
    thread_.join();
  }
  loop_.Unwatch(watch_);
}

void Aside::Do(std::function<void()> work, std::function<void()> done) {
  jobs_.Put({std::move(work), std::move(done)});
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
}

void Aside::Run() {
  for (;;) {
    for (Job& job : jobs_.AwaitAll()) {
      if (job.last) return;
      job.work();
      if (!job.done) continue;
      done_.Put(std::move(job.done));
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t told = write(event_.get(), &one, sizeof one);
    }
  }
}

void Aside::OnDone() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(event_.get(), &count, sizeof count);
  for (auto& done : done_.TakeAll()) done();
}

}  // namespace causeway::daemon
