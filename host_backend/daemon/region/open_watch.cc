// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/region/open_watch.h"

#include <sys/epoll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace causeway::daemon {

OpenWatch::OpenWatch(EventLoop& loop, int file, std::function<void()> opened)
    : loop_(loop), opened_(std::move(opened)), events_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (events_ && inotify_add_watch(events_.get(), path.c_str(), IN_OPEN) >= 0) {
    watch_ =
        loop_.Watch(events_.get(), EPOLLIN, "the opening of a VM's region", [this](uint32_t) { OnEvent(); });
  } else {
    at_once_ = loop_.After({}, "the opening of a VM's region", [this] { opened_(); });
  }
}

OpenWatch::~OpenWatch() {
  loop_.Unwatch(watch_);
  loop_.Cancel(at_once_);
}

void OpenWatch::OnEvent() {
  alignas(inotify_event) char events[4096];
  // Once: whoever opens the region without end would hold the loop here.
  if (read(events_.get(), events, sizeof events) > 0) opened_();
}

}  // namespace causeway::daemon
