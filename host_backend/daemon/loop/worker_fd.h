// SPDX-License-Identifier: Apache-2.0
// Descriptors whose last close may take long: a driver's then frees memory of a GPU, and a memory file gives
// back its pages. A separate thread closes them, so that the event loop does not wait. Descriptors that come
// from workers may be of any kind, so all of them are treated this way.
#pragma once
#include <cstdint>
#include <utility>

#include "host_backend/common/unique_fd.h"

namespace causeway::daemon {

// Has that thread close the descriptor. Any thread may call it.
void CloseAside(UniqueFd descriptor);
// The same; before, the memory of that memory file is given back from byte `from` on, which then reads as zero
// also where other processes still have the file. Any thread may call it.
void DiscardAside(UniqueFd file, int64_t from);

// Like UniqueFd, but closed by CloseAside.
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
