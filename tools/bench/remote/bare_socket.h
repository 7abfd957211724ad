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

// GB/s from one thread to another, in pieces of a staging buffer, until the last byte is acknowledged. `encrypted`: in records of
// TLS 1.3, by the product's own code.
Result<double> SenderGbPerS(uint64_t bytes, bool encrypted);

}  // namespace causeway::bench
