// SPDX-License-Identifier: Apache-2.0
// Descriptors that other threads than the event loop's close. The last close of one may take long: a driver's then frees memory
// of a GPU, a memory file gives back its pages, inotify waits for a grace period of the kernel (20 to 60 ms beside other work), a
// socket with SO_LINGER waits for its peer as long as it was told to, and a file of a user's file system (FUSE) for that user.
//
// Any thread may call all of this.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "host_backend/common/unique_fd.h"

namespace causeway::daemon {

// Whose closes they are: of one account only kMostOfAccount are under way at once, and the others wait for these, so that nobody's
// descriptors keep those of others from being closed.
class ClosingAccount {
 public:
  // How many are not closed yet. Whoever has more than kMostLeft of them is heard no more until it has fewer.
  size_t left() const { return left_.load(std::memory_order_relaxed); }
  bool is_full() const { return left() > kMostLeft; }
  static constexpr size_t kMostOfAccount = 8, kMostLeft = 1024;

 private:
  friend class Closer;
  std::atomic<size_t> left_{0};
  // With the closer's lock.
  size_t admitted_ = 0;
  std::deque<UniqueFd> held_back_;
};
using ClosingAccountRef = std::shared_ptr<ClosingAccount>;

// How many closes that do not end may be under way while further descriptors are still closed.
inline constexpr size_t kMostClosingThreads = 256;

// Has another thread close the descriptor. A close that takes long holds up no other, and one that can be interrupted (SO_LINGER's
// wait can) is, after some seconds. `account` may be null: the daemon's own.
void CloseAside(UniqueFd descriptor, ClosingAccountRef account = {});
// How many of them are not closed yet, without those that wait for others of their account. Whoever takes connections from
// strangers takes no more while there are more than kMostClosing: each has a descriptor, of which the process has a limited number.
size_t ClosingBacklog();
inline constexpr size_t kMostClosing = 1024;
// How long it then waits.
inline constexpr std::chrono::milliseconds kClosingPause{5};

// The memory of that memory file is given back from byte `from` on, which then reads as zero also where other processes still have
// the file; then it is closed. Who has it may keep the kernel from doing so for as long as it likes: while kMostDiscarding of them
// wait, the file is closed only, and its memory is theirs who still have it.
void DiscardAside(UniqueFd file, int64_t from);
inline constexpr size_t kMostDiscarding = 64;

}  // namespace causeway::daemon
