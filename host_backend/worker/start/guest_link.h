// SPDX-License-Identifier: Apache-2.0
// The way to the guest as the thread that watches over a session sees it: the socket whose end tells that the guest has gone, and what
// comes in its place where the session waits for a guest that has lost its connection. Of that thread alone.
#pragma once
#include <poll.h>

#include <memory>

#include "host_backend/common/unique_fd.h"
#include "host_backend/worker/start/worker_assignment.h"
#include "ivshmem_ring/tcp/tcp_transport.h"

namespace causeway::host {

class GuestLink {
 public:
  // `stream` is what OpenTransport gave, and outlives this object.
  GuestLink(const ReceivedAssignment& received, TcpServer* stream);

  // To be polled; its descriptor is negative where there is nothing to wait for.
  pollfd Watched() const;
  // After the poll. False: the guest has gone, and the session ends. A session that waits for its guest is told instead.
  bool StillThere(const pollfd& polled);
  // The daemon has sent that, with that descriptor.
  void Resume(const WorkerResume& message, UniqueFd descriptor);
  // The session ends on purpose. Any thread.
  void SayGoodbye() const {
    if (stream_ != nullptr) stream_->SayGoodbye();
  }
  // Why the session has ended, if it has waited in vain.
  std::string EndReason() const { return stream_ != nullptr ? stream_->EndReason() : std::string(); }

 private:
  TcpServer* const stream_;
  const bool encrypted_;
  // To the guest process, or over TLS to the process of its connection; null: there is none. The thread that takes a connection over uses
  // it, too.
  std::shared_ptr<UniqueFd> client_;
};

}  // namespace causeway::host
