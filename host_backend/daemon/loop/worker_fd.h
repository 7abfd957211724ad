// SPDX-License-Identifier: Apache-2.0
// Descriptors that the event loop must not close itself. The last close of one may take long: a driver's then
// frees memory of a GPU, a memory file gives back its pages, inotify waits for a grace period of the kernel
// (20 to 60 ms beside other work), and a socket with SO_LINGER waits for its peer as long as it was told to.
// A worker or a local client may send descriptors of any kind, and a UNIX socket to which it writes may hold
// such descriptors, which are closed with the socket. So this is the type of received descriptors and of
// sockets whose peer is a stranger; other threads close them.
#pragma once
#include <sys/stat.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "host_backend/common/unique_fd.h"

namespace causeway::daemon {

// How many closes that do not end may be under way while further descriptors are still closed.
inline constexpr size_t kMostClosingThreads = 256;

// Has another thread close the descriptor. Any thread may call it. A close that takes long holds up no other,
// and one that can be interrupted (SO_LINGER's wait can) is, after some seconds.
void CloseAside(UniqueFd descriptor);
// How many of them are not closed yet. Whoever takes connections from strangers takes no more while there are more than
// kMostClosing: each has a descriptor, of which the process has a limited number. Any thread may call it.
size_t ClosingBacklog();
inline constexpr size_t kMostClosing = 1024;
// How long it then waits.
inline constexpr std::chrono::milliseconds kClosingPause{5};
// The same as CloseAside; before, the memory of that memory file is given back from byte `from` on, which then reads as zero
// also where other processes still have the file. Any thread may call it.
void DiscardAside(UniqueFd file, int64_t from);

// Like UniqueFd, but closed by CloseAside.
class WorkerFd {
 public:
  WorkerFd() = default;
  explicit WorkerFd(int fd) : fd_(fd) {}
  explicit WorkerFd(UniqueFd fd) : fd_(std::move(fd)) {}
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

// Returns what recvmsg does of a packet (SOCK_SEQPACKET) that a stranger may have sent; never waits.
// `descriptors` gets all that came with it: the kernel would close at once, in the calling thread, those for
// which a receiver has no room. *got_flags, if not null, gets recvmsg's msg_flags: MSG_TRUNC tells a packet
// that is larger than `room`, MSG_CTRUNC that this process has no descriptors left.
ssize_t ReceiveFromStranger(int socket, void* bytes, size_t room, std::vector<WorkerFd>* descriptors,
                            int* got_flags = nullptr);

// What the kernel knows of a stranger's descriptor: fstat would ask the server of a user's file system (FUSE), which
// may never answer. False: nothing.
bool StatStranger(int descriptor, struct statx* info);

// Has the kernel refuse descriptors that anyone sends to this UNIX socket, or to one that is accepted from it,
// where it can (Linux 6.16). Elsewhere nothing changes.
void RefuseDescriptors(int socket);

}  // namespace causeway::daemon
