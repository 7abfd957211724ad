// SPDX-License-Identifier: Apache-2.0
// What the daemon hands to a worker: the session's descriptors, and the region they open.
#pragma once
#include <poll.h>

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "host_backend/common/named_devices.h"
#include "host_backend/common/shares/account_page.h"
#include "host_backend/common/worker_control.h"
#include "host_backend/worker/addresses/region_view.h"
#include "ivshmem_ring/tcp/tcp_transport.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/ring_transport.h"

namespace causeway::host {

struct ReceivedAssignment {
  WorkerAssignment assignment{};
  int fds[4] = {-1, -1, -1, -1};  // the session's, in the order of worker_control.h
  int account_fd = -1, account_reading_fd = -1;
  uint32_t grace_s =
      0;  // for how long the session waits for its guest when the connection is lost; 0: it ends
  bool compresses = false;  // over a socket: both sides may compress bulk bytes
};

// Waits for the assignment, whose descriptors are then the caller's. False: the daemon has closed the control
// socket. `belong` is called before that if the daemon says whose session it will be (WorkerScope).
bool ReceiveAssignment(int control, const std::function<void(const WorkerScope&)>& belong,
                       ReceivedAssignment* received);

// The socket whose end is the session's: to the guest process, or over TLS to the process of its connection; or -1.
int ClientSocket(const ReceivedAssignment& received);

// Maps, for as long as the process lives, what it may map without the daemon's consent: the page on which the
// session's memory is counted; the host's part of the flight record (*flight is null if there is none); and,
// if there is a region, its own slot and granule 0, which this process can never write. Arenas map the slices
// later (host_backend/worker/addresses/arenas.cc), and only those that were lent
// (host_backend/sandbox/filter.h). It closes the descriptors that are not needed any more. False: *error says
// why.
bool MapSession(ReceivedAssignment* received, RegionView* view, AccountPage** page, FlightImage** flight,
                std::string* error);

// The session's transport, with those descriptors. `resolve`: as RingServerOptions has it. *stream: the same transport, where it is one
// over a socket, and null otherwise. Over a socket the daemon is told by `control` when the session waits for its guest.
std::unique_ptr<ServerTransport> OpenTransport(const ReceivedAssignment& received, int control,
                                               const RegionView& view, FlightImage* flight,
                                               decltype(RingServerOptions::resolve) resolve,
                                               TcpServer** stream);
// Tells the guest, by a word of its slot, that it may send. Does nothing over TCP, where there is no region.
void SayServing(const RegionView& view);

// Tells the daemon whether the worker can serve: `error` says why not, or is empty, and `library` is what it
// has opened. `devices`: all that the driver shows, or none where they cannot be told. False: the worker has to end.
bool SendReady(int control, const std::string& error, const std::string& library, WorkerReady* ready,
               std::span<const NamedDevice> devices = {});

}  // namespace causeway::host
