// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/loop/event_loop.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "host_backend/common/result.h"

namespace causeway::daemon {
namespace {

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "causewayd: %s failed: %s\n", what, ErrnoText().c_str());
  std::abort();
}

}  // namespace

EventLoop::EventLoop() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) Die("epoll_create1");
}

EventLoop::WatchId EventLoop::Watch(int fd, uint32_t events, std::string_view what,
                                    std::function<void(uint32_t)> handler) {
  const WatchId watched = TryWatch(fd, events, what, handler);
  if (watched != 0) return watched;
  if (!running_) Die("epoll_ctl");
  std::fprintf(stderr, "causewayd: %.*s cannot be watched and is taken for its end: %s\n",
               static_cast<int>(what.size()), what.data(), ErrnoText().c_str());
  const WatchId id = next_id_++;
  watches_[id] = std::make_shared<Handler>(Handler{what, std::move(handler)});
  Later(what, [this, id] {
    const auto found = watches_.find(id);
    if (found == watches_.end()) return;
    const auto kept = found->second;  // it may end itself
    kept->call(EPOLLERR | EPOLLHUP);
  });
  return id;
}

EventLoop::WatchId EventLoop::TryWatch(int fd, uint32_t events, std::string_view what,
                                       std::function<void(uint32_t)> handler) {
  const WatchId id = next_id_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return 0;
  watches_[id] = std::make_shared<Handler>(Handler{what, std::move(handler)});
  fds_[id] = fd;
  return id;
}

void EventLoop::Unwatch(WatchId& id) {
  if (const auto found = fds_.find(id); found != fds_.end()) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second, nullptr);
    fds_.erase(found);
  }
  watches_.erase(id);
  id = 0;
}

EventLoop::TimerId EventLoop::After(std::chrono::nanoseconds delay, std::string_view what,
                                    std::function<void()> handler) {
  const TimerId id = next_id_++;
  timers_.emplace(Clock::now() + delay, Work{what, std::move(handler), id});
  return id;
}

void EventLoop::Cancel(TimerId& id) {
  for (auto timer = timers_.begin(); id != 0 && timer != timers_.end(); ++timer) {
    if (timer->second.id != id) continue;
    timers_.erase(timer);
    break;
  }
  id = 0;
}

void EventLoop::Later(std::string_view what, std::function<void()> work) {
  later_.push_back({what, std::move(work), 0});
}

int EventLoop::TimeoutMs() const {
  if (!later_.empty()) return 0;
  if (timers_.empty()) return -1;
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first - Clock::now());
  return wait.count() < 0 ? 0 : static_cast<int>(std::min<int64_t>(wait.count(), 60'000));
}

void EventLoop::RunTimers() {
  const auto now = Clock::now();
  timer_late_ = Clock::duration{0};
  // Those that a handler adds wait for the next round: events come in between.
  const TimerId first_new = next_id_;
  for (auto at = timers_.begin(); at != timers_.end() && at->first <= now; at = timers_.begin()) {
    while (at != timers_.end() && at->first <= now && at->second.id >= first_new) ++at;
    if (at == timers_.end() || at->first > now) break;
    auto timer = timers_.extract(at);
    timer_late_ = std::max(timer_late_, now - timer.key());
    timer.mapped().call();
    Done(timer.mapped().what);
  }
}

void EventLoop::RunLater() {
  while (!later_.empty()) {
    std::vector<Work> work;
    work.swap(later_);
    for (auto& item : work) {
      item.call();
      Done(item.what);
    }
  }
}

void EventLoop::Prefer() {
  constexpr int kNice = -10;
  const auto self = id_t(syscall(SYS_gettid));
  if (getpriority(PRIO_PROCESS, self) > kNice) setpriority(PRIO_PROCESS, self, kNice);
}

void EventLoop::Done(std::string_view what) {
  const auto now = work_.clock().Read();
  const auto piece = LoopWork::Between(last_, now);
  work_.Note(what, piece, now.now);
  round_busy_ += piece.busy;
  last_ = now;
}

void EventLoop::Run(const std::function<bool()>& done) {
  LoopPart::SetWork(&work_);
  running_ = true;
  last_ = work_.clock().Read();
  while (!done()) {
    epoll_event events[64];
    const auto before = last_;
    const int count = epoll_wait(epoll_.get(), events, 64, TimeoutMs());
    if (count < 0 && errno != EINTR) Die("epoll_wait");
    const auto begin = work_.clock().Read();
    last_ = begin;
    round_busy_ = Clock::duration{0};
    for (int i = 0; i < count; ++i) {
      // A handler that ran before may have ended this watch; the copy keeps a handler alive that ends itself.
      const WatchId id = events[i].data.u64;  // a copy: the kernel's structure is packed
      const auto found = watches_.find(id);
      if (found == watches_.end()) continue;
      const auto handler = found->second;
      handler->call(events[i].events);
      Done(handler->what);
    }
    RunTimers();
    RunLater();
    const auto woken_late = begin.unscheduled - before.unscheduled;
    const auto round = last_.now - begin.now;
    late_.Note(std::max(woken_late + round, timer_late_), last_.now);
    busy_.Note(round_busy_, last_.now);
    unscheduled_.Note(woken_late + round - round_busy_, last_.now);
  }
  LoopPart::SetWork(nullptr);
}

}  // namespace causeway::daemon
