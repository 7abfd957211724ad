// SPDX-License-Identifier: Apache-2.0
// Checks what a guest process says of itself before it is served.
#pragma once
#include <string>
#include <vector>

#include "host_backend/common/result.h"
#include "host_backend/daemon/process/worker_programs.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::daemon {

struct OpenRequest {
  uint32_t pid = 0;
  SessionKind kind = SessionKind::kCuda;
  uint64_t api_hash = 0;                 // of a worker that this host has
  std::string release;                   // of the library, as it says
  uint64_t window_address = 0;           // 0 over TCP
  std::vector<std::string> environment;  // NAME=VALUE, only what may reach a driver on the host
};

// The release of the guest's library, as it says; of libraries before 1.1 of the region it is not known.
std::string ReleaseOf(const OpenBlock& block);

// `block` is a private copy. `region_bytes` is 0 over TCP, where nothing is mapped. `gpus`: those that the
// guest may have, if not all. `shares_environment`: CUDA_VISIBLE_DEVICES of this daemon is its clients' own,
// as with `causeway run`, and is no bound. An error is the sentence for the guest process.
Result<OpenRequest> CheckOpenBlock(const OpenBlock& block, const WorkerPrograms& workers,
                                   uint64_t region_bytes, const std::vector<std::string>& gpus,
                                   bool shares_environment);

}  // namespace causeway::daemon
