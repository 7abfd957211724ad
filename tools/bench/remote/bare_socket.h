// SPDX-License-Identifier: Apache-2.0
// What a socket over the loopback interface does without Causeway: the measure for its transports over sockets.
#pragma once
#include <cstddef>
#include <cstdint>

#include "host_backend/common/result.h"

namespace causeway::bench {

// Microseconds of a message and its answer, of so many bytes each: the median of rounds of `calls`. The asking thread waits as
// Causeway's guest does, by the same policy, and the answering one in a blocking receive, as the worker does.
Result<double> PingPongUs(size_t request_bytes, size_t reply_bytes, int calls);

// What the bare sender stands for: a copy of so many bytes between a guest's memory and the worker's staging buffers.
struct BareCopy {
  uint64_t bytes = 0;      // of the guest's memory: all of it is sent or received, a small one several times
  bool to_host = true;     // the guest sends
  bool encrypted = false;  // in records of TLS 1.3, by the product's own code
};

// GB/s from one thread to another, in pieces of a staging buffer, until the last byte is acknowledged. The worker's end has one such
// piece, which stays in the processor's caches; a guest's memory of 256 MiB does not.
Result<double> SenderGbPerS(const BareCopy& copy);

}  // namespace causeway::bench
