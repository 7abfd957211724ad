// SPDX-License-Identifier: Apache-2.0
// WorkerFd owns a descriptor, and has a thread beside the event loop close it (closing.h). Each descriptor that the daemon receives lies in
// a WorkerFd, because a worker or a local client may send one whose close() takes seconds. Each socket of an untrusted peer lies in one, too,
// because the kernel closes the unread descriptors in a UNIX socket together with the socket.
#pragma once
#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/loop/closing.h"

namespace causeway::daemon {

// Like UniqueFd, but closed by CloseAside.
class WorkerFd {
 public:
  WorkerFd() = default;
  explicit WorkerFd(int fd, ClosingAccountRef account = {}) : fd_(fd), account_(std::move(account)) {}
  explicit WorkerFd(UniqueFd fd) : fd_(std::move(fd)) {}
  WorkerFd(WorkerFd&& other) noexcept = default;
  WorkerFd& operator=(WorkerFd&& other) noexcept {
    if (fd_ && this != &other) CloseAside(std::move(fd_), std::move(account_));
    fd_ = std::move(other.fd_);
    account_ = std::move(other.account_);
    return *this;
  }
  ~WorkerFd() {
    if (fd_) CloseAside(std::move(fd_), std::move(account_));
  }
  // Whose it is, now that this is known.
  void ChargeTo(ClosingAccountRef account) { account_ = std::move(account); }
  const ClosingAccountRef& account() const { return account_; }

  int get() const { return fd_.get(); }
  explicit operator bool() const { return bool(fd_); }
  void reset(int fd = -1) { *this = WorkerFd(fd); }

 private:
  UniqueFd fd_;
  ClosingAccountRef account_;
};

// Returns what recvmsg does of a packet (SOCK_SEQPACKET) that a stranger may have sent; never waits.
// `descriptors` gets all that came with it: the kernel would close at once, in the calling thread, those for
// which a receiver has no room. *got_flags, if not null, gets recvmsg's msg_flags: MSG_TRUNC tells a packet
// that is larger than `room`, MSG_CTRUNC that this process has no descriptors left. `account`: whose they are.
ssize_t ReceiveFromStranger(int socket, void* bytes, size_t room, std::vector<WorkerFd>* descriptors,
                            int* got_flags = nullptr, const ClosingAccountRef& account = {});

// Whether an accept that failed so would fail again at once, and again, for as long as the process or the system has none left.
bool IsOutOfDescriptors(int error);

// What the kernel knows of a stranger's descriptor: fstat would ask the server of a user's file system (FUSE), which
// may never answer. False: nothing.
bool StatStranger(int descriptor, struct statx* info);

// Has the kernel refuse descriptors that anyone sends to this UNIX socket, or to one that is accepted from it,
// where it can (Linux 6.16). Elsewhere nothing changes.
void RefuseDescriptors(int socket);

}  // namespace causeway::daemon
