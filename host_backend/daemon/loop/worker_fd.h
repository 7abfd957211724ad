// SPDX-License-Identifier: Apache-2.0
// Descriptors whose last close may take as long as their kind likes: a driver's frees the memory of a GPU
// with it, a memory file gives back its pages. A thread of its own closes them, so that the event loop does
// not wait. Those that came from workers are of any kind.
#pragma once
#include <utility>

#include "host_backend/common/unique_fd.h"

namespace causeway::daemon {

// Closed soon, by another thread. Any thread.
void CloseAside(UniqueFd descriptor);

// As UniqueFd, but CloseAside is what closes it.
class WorkerFd {
 public:
  WorkerFd() = default;
  explicit WorkerFd(int fd) : fd_(fd) {}
  WorkerFd(WorkerFd&& other) noexcept = default;
  WorkerFd& operator=(WorkerFd&& other) noexcept {
    if (fd_ && this != &other) CloseAside(std::move(fd_));
    fd_ = std::move(other.fd_);
    return *this;
  }
  ~WorkerFd() {
    if (fd_) CloseAside(std::move(fd_));
  }

  int get() const { return fd_.get(); }
  explicit operator bool() const { return bool(fd_); }
  void reset(int fd = -1) { *this = WorkerFd(fd); }

 private:
  UniqueFd fd_;
};

}  // namespace causeway::daemon
