// SPDX-License-Identifier: Apache-2.0
// What the daemon hands to a worker: the session's descriptors, and the region they open.
#pragma once
#include <functional>
#include <string>

#include "host_backend/common/account_page.h"
#include "host_backend/common/worker_control.h"
#include "host_backend/worker/addresses/region_view.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::host {

struct ReceivedAssignment {
  WorkerAssignment assignment{};
  int fds[4] = {-1, -1, -1, -1};  // of the session
  int account_fd = -1, account_reading_fd = -1;
};

// False when the daemon has closed the control socket. `belong`: called, before this returns, where the
// daemon says whose session it will be.
bool ReceiveAssignment(int control, const std::function<void(const WorkerScope&)>& belong,
                       ReceivedAssignment* received);

// The page that the session's memory is counted on.
AccountPage* MapAccount(ReceivedAssignment* received, std::string* error);

// The socket to the guest process, or -1.
int ClientSocket(const ReceivedAssignment& received);

// Where the host's side of the flight record goes; null: nowhere. Mapped for as long as the process lives.
FlightImage* MapFlight(const ReceivedAssignment& received);

// Maps granule 0, which this process can never write, and its own slot; slices are mapped one arena at a time
// (host_backend/worker/addresses/arenas.cc), and only those that were lent (host_backend/sandbox/filter.h).
bool MapRegion(const ReceivedAssignment& received, RegionView* view, std::string* error);

}  // namespace causeway::host
