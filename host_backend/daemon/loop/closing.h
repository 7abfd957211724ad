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

// A closing account counts the descriptors of one scope family, or of one peer, that are to be closed. At most kMostOfAccount of them
// are being closed at once and the rest wait, so that slow closes of one owner take no threads from the closes of others.
class ClosingAccount {
 public:
  // How many descriptors of this account are not closed yet. While there are more than kMostLeft, the daemon reads nothing more from
  // the account's owner and accepts no connection of it, because each message may bring further descriptors.
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
// How many descriptors are not closed yet. Those that wait only because their account has kMostOfAccount closes under way are left
// out. While the result is above kMostClosing, listeners accept no connection, because the process has a limited number of descriptors.
size_t ClosingBacklog();
inline constexpr size_t kMostClosing = 1024;
// How long it then waits.
inline constexpr std::chrono::milliseconds kClosingPause{5};

// Another thread gives the memory of a memory file back to the kernel, from byte `from` on, and then closes the file. The memory then
// reads as zero in other processes that have the file. Such a process can delay this for as long as it likes by holding the kernel's
// lock of the file. So when kMostDiscarding files wait already, the file is only closed; processes that have it keep its memory.
void DiscardAside(UniqueFd file, int64_t from);
inline constexpr size_t kMostDiscarding = 64;

}  // namespace causeway::daemon
